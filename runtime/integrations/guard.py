"""A cache that refuses what would corrupt it without a word.

`DynamicCache` accepts all of the following for compressed, indexed and windowed layers and then computes wrong logits:
`crop` (compressor buffers and windows keep rows of the tokens taken back, though `is_croppable` says True), padding
(compressors pool the padded positions too), and batch reordering (`batch_repeat_interleave` leaves compressor state at
the old batch size). A `GuardedCache` raises `UnsafeUse` instead, with what to do.

Cache methods are guarded here. Padding shows only in a model's arguments, so an `InputGuard` looks at those.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers import DynamicCache

from ..errors import KvfsmError

__all__ = ["GuardedCache", "InputGuard", "UnsafeUse"]


class UnsafeUse(KvfsmError):
    """Something was asked of a cache that it can't do without becoming wrong: what, why, and what to do instead."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what}: {why}\n  fix: {fix}")
        self.what = what
        self.why = why
        self.fix = fix


class GuardedCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped
    """A `DynamicCache` of one sequence that only moves forward."""

    @property
    def is_croppable(self) -> bool:
        """Never: rows that left a window or a compressor's buffer can't be brought back."""
        return False

    def crop(self, tokens_to_remove: int) -> NoReturn:
        """Refuse: windows and compressor buffers would keep state of the tokens taken back."""
        raise UnsafeUse(
            f"crop({tokens_to_remove})",
            "window rows, compressor buffers and carried rows of the removed tokens would stay behind",
            "restore a lease at an earlier boundary, or keep a capture of the cache to go back to",
        )

    def activate_past_recording(self) -> NoReturn:
        """Refuse: it exists to prepare for `crop`."""
        raise UnsafeUse("activate_past_recording()", "only windows would record, compressors wouldn't", "see crop()")

    def reorder_cache(self, beam_idx: torch.Tensor) -> NoReturn:
        """Refuse: leased state belongs to one sequence."""
        raise UnsafeUse("reorder_cache()", "beams share one restored sequence", "restore one cache for each beam")

    def batch_repeat_interleave(self, repeats: int) -> NoReturn:
        """Refuse: compressor state would stay at the old batch size."""
        raise UnsafeUse(
            f"batch_repeat_interleave({repeats})",
            "keys would be repeated while compressed entries, buffers and carried rows would not",
            "restore one cache for each sequence",
        )

    def batch_select_indices(self, indices: torch.Tensor) -> NoReturn:
        """Refuse: compressor state would stay at the old batch size."""
        raise UnsafeUse(
            "batch_select_indices()", "compressor state would not be selected", "restore one cache for each sequence"
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Take new rows of one sequence; shapes [1, heads, tokens, dim]."""
        if key_states.shape[0] != 1:
            raise UnsafeUse(
                f"a batch of {key_states.shape[0]}",
                "other batch shapes give other bits, and a restored cache holds one sequence",
                "run each sequence with its own cache",
            )
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


class InputGuard:
    """Lets a model refuse padding, batches and jumps of position wherever it is given a `GuardedCache`.

    Calls with other caches pass untouched. The decoder inside is guarded too, for callers that need no logits.
    """

    def __init__(self, model: Any) -> None:
        inner = getattr(model, "base_model", model)
        guarded = [model] if inner is model else [model, inner]
        self._handles = [part.register_forward_pre_hook(_refuse_unsafe_inputs, with_kwargs=True) for part in guarded]

    def remove(self) -> None:
        """Take the guard off."""
        for handle in self._handles:
            handle.remove()


def _refuse_unsafe_inputs(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    if not isinstance(cache, GuardedCache):
        return
    mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    if mask is not None:
        if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
            raise UnsafeUse("a prepared attention mask", "it can't be checked for padding", "leave attention_mask out")
        if not bool(mask.all()):
            raise UnsafeUse(
                f"an attention mask with {int((mask == 0).sum())} zeros",
                "compressors and windows take padded positions for tokens",
                "leave padding out: give each sequence its own call and no mask",
            )
    ids = kwargs.get("input_ids", args[0] if args else None)
    if ids is not None and ids.shape[0] != 1:
        raise UnsafeUse(
            f"a batch of {ids.shape[0]}", "a restored cache holds one sequence", "run each sequence with its own cache"
        )
    positions = kwargs.get("position_ids")
    if positions is None:
        return
    given, start = positions.flatten().tolist(), int(cache.get_seq_length())
    if given != list(range(start, start + len(given))):
        raise UnsafeUse(
            f"position_ids that start at {given[0]}" if given[0] != start else "position_ids that jump",
            f"the cache ends at token {start}, and compressed entries count their own positions",
            "leave position_ids out",
        )
