"""Models, adapters and cold references, built once for all tests of this folder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvfsm.codegen.cli.demo_runs import Trace, run
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.integrations import tiny_models
from kvfsm.runtime.integrations.cache_state import CacheState
from kvfsm.runtime.integrations.transformers import TransformersAdapter
from kvfsm.runtime.profile import Profile

from .plain_slots import PlainStore
from .profiles import with_dtype

PROMPT_TOKENS = 187  # five granules of 32 and a rest of 27; eleven granules of 16
DECODE = 4


@dataclass
class Subject:
    """One model with all that its cold run published and computed."""

    name: str
    model: Any
    profile: Profile
    adapter: TransformersAdapter
    tokens: tuple[int, ...]
    store: PlainStore
    cold: Trace

    @property
    def at(self) -> dict[int, CacheState]:
        """The cold run's cache at each boundary."""
        return self.cold.boundaries

    def warm(self, cache: Any, length: int) -> Trace:
        return run(self.model, cache, self.tokens, length, self.profile.granule, DECODE)


def make_subject(name: str, dtype: torch.dtype = torch.float32) -> Subject:
    model, profile_name = tiny_models.build(name, dtype=dtype)
    profile = PROFILES[profile_name]
    if dtype != torch.float32:
        profile = with_dtype(profile, str(dtype).removeprefix("torch."))
    adapter = TransformersAdapter(profile, model)
    draw = random.Random(11)
    tokens = tuple(draw.randrange(1, 256) for _ in range(PROMPT_TOKENS))
    store = PlainStore(profile, PROMPT_TOKENS // profile.granule)

    def publish(cache: Any, begin: int, end: int) -> None:
        if end % profile.granule == 0:
            adapter.publish_chunk(cache, store.fill(begin // profile.granule))

    cold = run(model, adapter.new_cache(), tokens, 0, profile.granule, DECODE, publish, keep_boundaries=True)
    return Subject(name, model, profile, adapter, tokens, store, cold)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Bits depend on the number of threads; put back afterwards, other tests share the process."""
    before = torch.get_num_threads()
    tiny_models.fix_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def subject_of() -> Callable[[str], Subject]:
    """A subject by its label: a model's name, with ``/bfloat16`` behind it for that dtype."""
    made: dict[str, Subject] = {}

    def get(label: str) -> Subject:
        if label not in made:
            name, _, dtype = label.partition("/")
            made[label] = make_subject(name, tiny_models.DTYPES[dtype or "float32"])
        return made[label]

    return get


@pytest.fixture(scope="session")
def v4(subject_of: Callable[[str], Subject]) -> Subject:
    return subject_of("tiny-deepseek-v4")
