"""What corrupts these caches silently is refused; what doesn't is let through."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from kvfsm.runtime.integrations import tiny_models
from kvfsm.runtime.integrations.guard import GuardedCache, InputGuard, UnsafeUse

from .conftest import Subject

SubjectOf = Callable[[str], Subject]

UNSAFE: dict[str, Callable[[Any], object]] = {
    "crop": lambda cache: cache.crop(-1),
    "crop to a length": lambda cache: cache.crop(5),
    "past recording": lambda cache: cache.activate_past_recording(),
    "beam reorder": lambda cache: cache.reorder_cache(torch.tensor([0])),
    "batch repeat": lambda cache: cache.batch_repeat_interleave(2),
    "batch select": lambda cache: cache.batch_select_indices(torch.tensor([0])),
}


@pytest.mark.parametrize("use", UNSAFE)
@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_what_would_corrupt_a_cache_is_refused_with_a_reason(name: str, use: str, subject_of: SubjectOf) -> None:
    subject = subject_of(name)
    cache = subject.adapter.restore(subject.store.lease(64))
    assert not cache.is_croppable
    with pytest.raises(UnsafeUse) as refused:
        UNSAFE[use](cache)
    assert refused.value.why and "fix:" in str(refused.value)


def test_crop_really_corrupts_an_unguarded_cache(v4: Subject) -> None:
    """The reason for the guard: below the window, `crop` succeeds and later logits are wrong by more than rounding."""
    ids = torch.tensor([list(v4.tokens)])
    with torch.no_grad():
        straight = DynamicCache(config=v4.model.config)
        v4.model(input_ids=ids[:, :10], cache=straight)
        expected = v4.model(input_ids=ids[:, 10:60], cache=straight).logits
        cropped = DynamicCache(config=v4.model.config)
        v4.model(input_ids=ids[:, :13], cache=cropped)
        assert cropped.get_seq_length() == 13
        cropped.crop(-3)
        found = v4.model(input_ids=ids[:, 10:60], cache=cropped).logits
    assert float((found - expected).abs().max()) > 0.1


def test_padding_is_refused(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    mask = torch.ones((1, 70), dtype=torch.long)
    mask[0, :2] = 0
    ids = torch.tensor([list(v4.tokens[64:70])])
    with pytest.raises(UnsafeUse, match="an attention mask with 2 zeros"):
        v4.model(input_ids=ids, attention_mask=mask, cache=cache)
    mask[:] = 1
    v4.model(input_ids=ids, attention_mask=mask, cache=cache)


def test_the_decoder_inside_refuses_padding_too(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    with pytest.raises(UnsafeUse, match="an attention mask with 70 zeros"):
        v4.model.model(torch.tensor([list(v4.tokens[64:70])]), torch.zeros((1, 70)), cache=cache)


def test_a_mask_that_cannot_be_checked_is_refused(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    mask = torch.zeros((1, 1, 6, 70))
    with pytest.raises(UnsafeUse, match="can't be checked for padding"):
        v4.model(input_ids=torch.tensor([list(v4.tokens[64:70])]), attention_mask=mask, cache=cache)


def test_batches_are_refused_by_model_and_by_cache(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    ids = torch.tensor([list(v4.tokens[64:70])] * 2)
    with pytest.raises(UnsafeUse, match="a batch of 2"):
        v4.model(input_ids=ids, cache=cache)
    rows = torch.zeros((2, 1, 3, 32))
    with pytest.raises(UnsafeUse, match="a batch of 2"):
        cache.update(rows, rows, 0)


def test_a_jump_of_position_is_refused(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    ids = torch.tensor([list(v4.tokens[64:70])])
    with pytest.raises(UnsafeUse, match="position_ids that start at 68"):
        v4.model(input_ids=ids, position_ids=torch.arange(68, 74).unsqueeze(0), cache=cache)
    with pytest.raises(UnsafeUse, match="position_ids that jump"):
        v4.model(input_ids=ids, position_ids=torch.tensor([[64, 65, 66, 68, 69, 70]]), cache=cache)
    v4.model(input_ids=ids, position_ids=torch.arange(64, 70).unsqueeze(0), cache=cache)


def test_a_refused_call_leaves_the_cache_as_it_was(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    before = deepcopy(cache)
    with pytest.raises(UnsafeUse):
        v4.model(input_ids=torch.tensor([[1, 2], [3, 4]]), cache=cache)
    assert torch.equal(v4.warm(cache, 64).logits[160], v4.warm(before, 64).logits[160])


def test_other_caches_of_a_guarded_model_pass_untouched(v4: Subject) -> None:
    cache = DynamicCache(config=v4.model.config)
    v4.model(input_ids=torch.tensor([[1, 2], [3, 4]]), cache=cache)
    assert cache.layers[0].keys.shape[0] == 2


def test_the_guard_can_be_taken_off() -> None:
    model, _ = tiny_models.build("tiny-gpt-oss")
    cache = GuardedCache(config=model.config)
    mask = torch.tensor([[0, 1, 1]])
    handle = InputGuard(model)
    with pytest.raises(UnsafeUse):
        model(input_ids=torch.tensor([[1, 2, 3]]), attention_mask=mask, cache=cache)
    handle.remove()
    model(input_ids=torch.tensor([[1, 2, 3]]), attention_mask=mask, cache=cache)
