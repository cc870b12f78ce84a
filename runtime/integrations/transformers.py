"""Cache state of a `transformers` model: out of a `DynamicCache` into slots, and back, to the last bit.

    adapter = TransformersAdapter(profile, model)    # refuses a model that isn't the profile's
    cache = adapter.new_cache()
    model(input_ids=chunk, cache=cache)              # one granule of tokens
    adapter.publish_chunk(cache, fill)               # rows -> slots that a manager reserved
    ...
    cache = adapter.restore(lease)                   # slots -> a cache that any later pass continues

What is stored of each layer follows from the profile's parts; where it is found in a `transformers` cache, and what its
numbers mean, from ``places.py``. Positions are in tokens, boundaries are multiples of the profile's granule, and there
are no partial blocks: at a boundary a compressor's buffer is empty and only carried rows remain.

A restored cache is a `GuardedCache`. Exactness asks for equal chunks, threads, batch and dtype: prefill in chunks of
one granule from token 0 (``chunks`` yields them).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import KvfsmError
from ..layout import Layout, Part
from ..policy import replay_range
from ..profile import Profile
from .guard import GuardedCache, InputGuard
from .places import CSA, HCA, INDEXED, PLACES, SLIDING, Place, dtype_of
from .replay import run_frozen

__all__ = ["Mismatch", "TransformersAdapter", "chunks"]


class Mismatch(KvfsmError):
    """Model, profile and bytes don't belong together: where, what was expected, what was found, how to fix it."""

    def __init__(self, where: str, expected: object, found: object, fix: str) -> None:
        super().__init__(f"{where}: expected {expected}, found {found}\n  fix: {fix}")
        self.where = where
        self.expected = expected
        self.found = found
        self.fix = fix


def chunks(start: int, stop: int, granule: int) -> Iterator[tuple[int, int]]:
    """The canonical prefill schedule of tokens [start, stop): cut at multiples of the granule.

    >>> list(chunks(32, 75, 32))
    [(32, 64), (64, 75)]
    """
    while start < stop:
        end = min(stop, start - start % granule + granule)
        yield start, end
        start = end


class TransformersAdapter:
    """Moves cache state of one model. Holds no cache and no slot itself, so threads may share it.

    Args:
        profile: what the model's slots hold.
        model: a causal language model of `transformers`, on the CPU; from now on it refuses padding, batches and jumps
            of position together with a cache made here, until ``close``.

    Raises:
        Mismatch: the model isn't the profile's.
    """

    def __init__(self, profile: Profile, model: Any) -> None:
        self.profile = profile
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        self.layer_types: tuple[str, ...] = tuple(self.config.layer_types)
        self._layer_classes = self.check(model)
        self._guard = InputGuard(model)

    @property
    def asks(self) -> dict[str, str]:
        """Layout digest that this adapter reads, by kind: what to pass to ``Manager.match`` as ``asks``."""
        return {kind: layout.digest for kind, layout in self.profile.layouts.items()}

    def close(self) -> None:
        """Take the guard off the model."""
        self._guard.remove()

    def new_cache(self) -> GuardedCache:
        """An empty cache that refuses what would corrupt it."""
        return GuardedCache(config=self.config)

    # What has to hold before any byte is moved

    def check(self, model: Any) -> tuple[type, ...]:
        """Refuse a model whose cache isn't what the profile describes; the first difference is named.

        Returns:
            The classes of the layers of its cache.

        Raises:
            Mismatch: device, layer types, ratios, window, dtype, row shapes or the meaning of rows differ.
        """
        config = model.config.get_text_config(decoder=True)
        profile = self.profile
        if model.device.type != "cpu":
            raise Mismatch("model.device", "cpu", model.device, "move the model: slots are copied through host memory")
        self._check_layers(config)
        if profile.window is not None and config.sliding_window != profile.window:
            raise Mismatch(
                "config.sliding_window", profile.window, config.sliding_window, "use the profile of this model"
            )
        for name, rate in (getattr(config, "compress_rates", None) or {}).items():
            for group in profile.groups:
                mine = {index for index, kind in enumerate(config.layer_types) if kind == name}
                if group.object == "compressed_kv" and mine & set(group.layers) and group.ratio != rate:
                    raise Mismatch(
                        f"config.compress_rates[{name!r}]", group.ratio, rate, "use the profile of this model"
                    )
        probe = _probe(model, config)
        for kind, layout in profile.layouts.items():
            for part in layout.parts:
                self._check_part(kind, part, probe.layers[part.layer])
        return tuple(type(layer) for layer in probe.layers)

    def check_slots(self, slots: Any) -> None:
        """Refuse slots laid out by another profile, before any byte of them is read.

        Raises:
            Mismatch: the layout of an object has another digest. Meanings are part of it, so score rows with the bias
                folded in are never taken for raw ones.
        """
        theirs: Mapping[str, Layout] = slots.manager.profile.layouts
        for kind, layout in self.profile.layouts.items():
            found = theirs.get(kind)
            if found is None or found.digest != layout.digest:
                raise Mismatch(
                    f"layout of {kind}",
                    layout.digest[:16],
                    "none" if found is None else f"{found.digest[:16]} ({'; '.join(found.differences(layout)[:3])})",
                    f"read them with the profile that wrote them, or publish them again under {self.profile.name}",
                )

    def _check_layers(self, config: Any) -> None:
        """Each layer has the objects that its type needs, and no other."""
        profile = self.profile
        count = 1 + max(layer for group in profile.groups for layer in group.layers)
        if config.num_hidden_layers != count:
            raise Mismatch("config.num_hidden_layers", count, config.num_hidden_layers, "use the profile of this model")
        for layer, layer_type in enumerate(config.layer_types):
            needs = {kind for kind, type_ in PLACES if type_ == layer_type}
            has = {group.object for group in profile.groups if layer in group.layers}
            if needs != has:
                raise Mismatch(
                    f"config.layer_types[{layer}] = {layer_type!r}",
                    f"objects {sorted(has)} by profile {profile.name}",
                    f"objects {sorted(needs)}",
                    "use the profile of this model",
                )

    def _check_part(self, kind: str, part: Part, layer: Any) -> None:
        place = self._place(kind, part)
        where = f"{kind} layer {part.layer} part {part.name!r}"
        if part.meaning != place.meaning:
            raise Mismatch(
                f"{where}: meaning", part.meaning, place.meaning, "transformers' rows mean this; change the profile"
            )
        rows = place.read(layer)
        if rows is None:
            raise Mismatch(where, "rows in the cache", "none", "use the profile of this model")
        if rows.dtype != dtype_of(part):
            found = str(rows.dtype).removeprefix("torch.")
            raise Mismatch(
                f"{where}: dtype", part.dtype, found, f"build the model with dtype {part.dtype}, or use its own profile"
            )
        if tuple(rows.shape[1:]) != part.row_shape:
            raise Mismatch(
                f"{where}: row shape", part.row_shape, tuple(rows.shape[1:]), "use the profile of this model"
            )

    def _place(self, kind: str, part: Part) -> Place:
        places = PLACES.get((kind, self.layer_types[part.layer]), {})
        if part.name not in places:
            raise Mismatch(
                f"{kind} layer {part.layer}",
                f"one of the parts {', '.join(places) or 'none'}",
                part.name,
                "name the part as places.py does, or add its place there",
            )
        return places[part.name]

    # Out of a cache

    def publish_chunk(self, cache: Any, fill: Any) -> None:
        """Copy what a cache holds at ``fill.boundary`` into the fill's slots, one copy a part.

        Args:
            cache: has just run up to ``fill.boundary``, in chunks of one granule.
            fill: slots for granules [fill.start, fill.stop); carried rows exist for its last boundary only.

        Raises:
            Mismatch: the cache is at another position, or the fill has other layouts, or spans granules whose carried
                rows the cache no longer has.
        """
        self.check_slots(fill)
        found = tuple(type(layer) for layer in cache.layers)
        if found and found != self._layer_classes:
            wanted, got = _names(self._layer_classes), _names(found)
            raise Mismatch("cache layers", wanted, got, "publish what this adapter's model computed")
        position = int(cache.get_seq_length())
        if position != fill.boundary:
            raise Mismatch(
                "cache position",
                f"{fill.boundary}, the fill's boundary",
                position,
                "publish right after the chunk that ends there",
            )
        for kind in fill.kinds:
            for part in self.profile.layouts[kind].parts:
                if part.role != "pending":  # no row is pending at a boundary
                    self._publish_part(kind, part, cache.layers[part.layer], fill)

    def _publish_part(self, kind: str, part: Part, layer: Any, fill: Any) -> None:
        target = fill.view(kind, part.name, part.layer)
        rows = self._place(kind, part).read(layer)
        if rows is None:
            raise Mismatch(
                f"{kind} layer {part.layer} part {part.name!r}",
                "rows in the cache",
                "none",
                "run a whole granule before publishing",
            )
        self._check_rows(kind, part, layer, rows)
        if part.role == "entries":
            last = fill.boundary // part.ratio
            rows = rows[last - part.rows * len(target) : last]
        elif len(target) > self._slots_at_a_boundary(part):
            raise Mismatch(
                f"{kind} layer {part.layer} part {part.name!r}",
                f"a fill of one granule, at most {self._slots_at_a_boundary(part)} slots",
                f"{len(target)} slots, while carried and window rows exist at the last boundary only",
                "publish after each granule",
            )
        _right_aligned(target, _bytes_of(rows, part))

    def _check_rows(self, kind: str, part: Part, layer: Any, rows: torch.Tensor) -> None:
        """Refuse rows of another model, or of a batch, of which only the first sequence would be kept."""
        where = f"{kind} layer {part.layer} part {part.name!r}"
        wanted, found = (part.row_shape, dtype_of(part)), (tuple(rows.shape[1:]), rows.dtype)
        if found != wanted:
            raise Mismatch(where, wanted, found, "publish what this adapter's model computed")
        batch = self._place(kind, part).batch(layer)
        if batch != 1:
            raise Mismatch(where, "a batch of 1", f"a batch of {batch}", "run each sequence with its own cache")

    def _slots_at_a_boundary(self, part: Part) -> int:
        """Slots that one granule fills with rows that end at its boundary: several where windows are kept in blocks."""
        blocks = self.profile.window_block if part.role == "window" else None
        return self.profile.granule // blocks if blocks else 1

    # Back into a cache

    def restore(self, lease: Any) -> GuardedCache:
        """A cache at ``lease.length`` that equals, to the bit, the one that was published there.

        Raises:
            Mismatch: the lease's slots have other layouts, or it has none for windows; nothing has been read then.
        """
        if lease.replay is not None:
            fix = f"restore_by_replay(lease, tokens, {lease.replay.start}), which is right to rounding"
            raise Mismatch("lease", "windows", "none, as the manager's window policy keeps none here", fix)
        return self._restore(lease, None)

    def restore_by_replay(self, lease: Any, tokens: Sequence[int], start: int | None = None) -> GuardedCache:
        """A cache at ``lease.length`` whose windows were computed anew: right to rounding, not to the bit.

        Args:
            lease: holds all objects but windows.
            tokens: the prompt, at least ``lease.length`` tokens.
            start: where to start running again; by default as late as every layer's window allows.

        Raises:
            Mismatch: other layouts, too few tokens, or a start from which some layer's window wouldn't be complete.
        """
        if len(tokens) < lease.length:
            raise Mismatch("tokens", f"at least {lease.length}", len(tokens), "give the whole prompt")
        latest = replay_range(self.profile, lease.length).start
        begin = latest if start is None else start
        if not 0 <= begin <= latest:
            raise Mismatch(
                "start of the replay",
                f"one in [0, {latest}]",
                begin,
                "run more tokens again: the lower layers' windows spread upwards",
            )
        cache = self._restore(lease, begin)
        run_frozen(self.model, cache, tokens, begin, lease.length, self.profile.granule)
        return cache

    def _restore(self, lease: Any, blank_windows_at: int | None) -> GuardedCache:
        """All of a lease as a cache; with ``blank_windows_at``, windows end there instead and hold zeros.

        Attention reads those zeros during a replay; no trace of them is left after the tokens of ``replay_range``.
        """
        self.check_slots(lease)
        window_end = lease.length if blank_windows_at is None else blank_windows_at
        cache = self.new_cache()
        for kind in self.profile.kinds:
            for part in self.profile.layouts[kind].parts:
                if part.role == "pending":
                    rows = _blank(part, 0)
                elif part.role == "window" and blank_windows_at is not None:
                    rows = _blank(part, self._window_rows(window_end))
                else:
                    rows = self._leased_rows(kind, part, lease)
                self._place(kind, part).write(cache.layers[part.layer], rows)
        for layer, layer_type in zip(cache.layers, self.layer_types, strict=True):
            _finish_layer(layer, layer_type, window_end)
        return cache

    def _window_rows(self, position: int) -> int:
        """Rows that a window holds at a position: the next query brings its own."""
        assert self.profile.window is not None
        return min(position, self.profile.window - 1)

    def _leased_rows(self, kind: str, part: Part, lease: Any) -> torch.Tensor:
        """Rows [rows, ...] of one part as a tensor of its own; of carried rows those of the last slot."""
        leased = lease.view(kind, part.name, part.layer)
        if part.role == "carry":
            leased = leased[-1:]
        rows = leased.reshape(-1, part.row_bytes)
        if part.role == "window":
            rows = rows[len(rows) - self._window_rows(lease.length) :]
        owned = torch.from_numpy(np.array(rows, copy=True, order="C"))
        return owned.view(dtype_of(part)).reshape(-1, *part.row_shape)


def _finish_layer(layer: Any, layer_type: str, window_end: int) -> None:
    """Counters and flags that follow from the position; `values` shares the memory of `keys` where it should."""
    if layer_type in (CSA, HCA):
        layer.values = layer.keys
        for name, entries in layer.compressed_kv.items():
            layer.entry_count[name] = entries.shape[1]
    if layer_type in (SLIDING, CSA, HCA):
        layer.cumulative_length = window_end
    layer.device = layer.keys.device
    layer.is_initialized = True
    if layer_type == INDEXED:
        layer.indexer_dtype, layer.indexer_device = layer.indexer_keys.dtype, layer.indexer_keys.device
        layer.is_indexer_initialized = True


def _names(classes: Sequence[type]) -> str:
    return ", ".join(dict.fromkeys(one.__name__ for one in classes))


def _blank(part: Part, rows: int) -> torch.Tensor:
    return torch.zeros((rows, *part.row_shape), dtype=dtype_of(part))


def _right_aligned(target: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
    """Write rows [n, row_bytes] so that the last ends the last slot of ``target``; slots ahead of them become zeros.

    Windows have fewer rows than their slots near the start of a prompt, and where blocks are longer than windows.
    """
    flat = np.zeros((target.shape[0] * target.shape[1], target.shape[2]), np.uint8)
    flat[len(flat) - min(len(data), len(flat)) :] = data[len(data) - min(len(data), len(flat)) :]
    target[:] = flat.reshape(target.shape)


def _bytes_of(rows: torch.Tensor, part: Part) -> NDArray[np.uint8]:
    """Rows [rows, ...] as bytes [rows, row_bytes]."""
    found: NDArray[np.uint8] = rows.detach().contiguous().view(torch.uint8).numpy().reshape(-1, part.row_bytes)
    return found


@torch.no_grad()
def _probe(model: Any, config: Any) -> GuardedCache:
    """A cache after one granule of tokens, which shows every field's real shape and dtype."""
    cache = GuardedCache(config=config)
    length = max((getattr(config, "compress_rates", None) or {"": 1}).values())
    model(input_ids=torch.zeros((1, length), dtype=torch.long), cache=cache, use_cache=True)
    return cache
