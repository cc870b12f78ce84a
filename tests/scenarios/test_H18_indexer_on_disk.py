"""H-18: a tier serves a prefix only as far as it holds every object of the model.

Disk holds the KV of 512 tokens and no index keys: a miss. With both it is a hit whose index keys are the ones that were
written; without one page of index keys it ends before that page.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.matching import Matcher

KV, INDEX = "compressed_kv", "indexer_state"


def digests(rows: Any) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(page)).hexdigest() for page in rows]


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(64, bench.group("latent", KV, 64, 64), bench.group("index", INDEX, 64, 64))
    store, prompt = open_store(profile), bench.tokens(513)

    def flushed() -> tuple[Any, Any]:
        """Nothing on the device: another manager over the same disk, its memory full of somebody else's bytes."""
        manager = bench.manager(profile, 8, store=store, writes="none")
        bench.put(manager, manager.keys(bench.tokens(513, 99)), 0, 8, tag=99)
        return manager, manager.keys(prompt)

    writer = bench.manager(profile, 8, store=store)
    bench.put(writer, writer.keys(prompt), 0, 8, tag=1, kinds=(KV,))
    manager, keys = flushed()
    answer = manager.match(keys)
    # sign of the defect: 512, and the index keys of another owner route the query
    assert (answer.kind, answer.length) == ("MISS", 0)

    writer = bench.manager(profile, 8, store=store)
    fill = writer.reserve(writer.keys(prompt), 0, 8)
    bench.tag(fill, 1)
    fill.view(INDEX, "rows", 0)[:, :, 0] = np.arange(8)[:, None] + 10
    written = digests(fill.view(INDEX, "rows", 0))
    writer.publish(fill)
    manager, keys = flushed()
    answer = manager.match(keys)
    assert (answer.kind, answer.length, answer.now) == ("HIT_PENDING", 512, 0)
    with manager.acquire(manager.load(answer.plan)) as lease:
        assert lease.length == 512 and digests(lease.view(INDEX, "rows", 0)) == written
        assert (lease.view(KV, "rows", 0) == 1).all()
    bench.audited(manager)

    assert store.delete(manager.object_of(keys.digests, keys.salt, INDEX, np.array([5]))) == 1
    manager, keys = flushed()
    answer = manager.match(keys)
    assert (answer.length, answer.plan.wanted[INDEX].tolist()) == (320, [0, 1, 2, 3, 4])
    with manager.acquire(manager.load(answer.plan)) as lease:
        assert lease.length == 320 and digests(lease.view(INDEX, "rows", 0)) == written[:5]
    bench.audited(manager)


def test_H18_a_prefix_without_its_index_keys_is_a_miss(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H18_control_a_tier_that_is_not_asked_for_index_keys_is_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    contains = Matcher._contains

    def kv_only(self: Matcher, digests: Any, salt: bytes, kind: str, places: Any) -> Any:
        return np.ones(len(places), bool) if kind == INDEX else contains(self, digests, salt, kind, places)

    monkeypatch.setattr(Matcher, "_contains", kv_only)
    with pytest.raises(AssertionError, match="512"):
        scenario(bench, open_store)
