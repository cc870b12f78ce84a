"""H-31: the adapter's content is part of the key, so what an older version computed is found in no tier.

Keys name the adapter by content here. A request that began under version 1 keeps it, also for what it publishes after
the reload; going back to version 1's content finds its blocks again.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime import keys as content_keys


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(64, bench.group("full", "compressed_kv", 64, 64))
    store, prompt, other = open_store(profile), bench.tokens(129), bench.tokens(129, 5)
    manager = bench.manager(profile, 16, store=store)
    v1, v2 = ({"adapter": f"t@{digest}"} for digest in ("1f40", "99c2"))
    bench.put(manager, manager.keys(prompt, **v1), 0, 2, tag=1)
    running = manager.keys(other, **v1)
    row = manager.requests.admit(100)

    # the adapter is loaded anew, under its old name
    # sign of the defect: 128
    assert manager.match(manager.keys(prompt, **v2)).length == 0
    cold = bench.manager(profile, 16, store=store)
    assert cold.match(cold.keys(prompt, **v2)).length == 0

    for _ in range(28):
        manager.requests.step([row])
    assert manager.requests.publish(row, running) == 2
    manager.requests.finish(row)
    manager.persist(running)
    for one in (manager, cold):
        assert one.match(one.keys(other, **v2)).length == 0
        assert one.match(one.keys(other)).length == 0

    for tokens in (prompt, other):  # back to the content of version 1
        assert manager.match(manager.keys(tokens, **v1)).now == 128
        assert cold.match(cold.keys(tokens, **v1)).length == 128
    with manager.acquire(manager.match(manager.keys(prompt, **v1))) as lease:
        assert (lease.view("compressed_kv", "rows", 0) == 1).all()
    bench.audited(manager)


def test_H31_a_reloaded_adapter_finds_nothing_of_the_old_one(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H31_control_keys_by_name_alone_are_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = content_keys._header
    monkeypatch.setattr(
        content_keys, "_header", lambda identity, salt, adapter: header(identity, salt, adapter.partition("@")[0])
    )
    with pytest.raises(AssertionError, match="128"):
        scenario(bench, open_store)
