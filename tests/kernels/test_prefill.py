"""An engine's prefill over a manager: rows become entries by kernels, in the slots of a fill; others read them.

The engine here has random rows in place of a model. Everything else is what an engine does: it reserves a fill, asks
where its pages lie, launches ``compress_v4`` and ``compress_index_key`` there beside the state words, publishes, and
goes on from the boundary of another request, whose tail holds the rows that the next window is pooled with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.backend import KernelBackend
from kvfsm.kernels.compress import (
    CARRY,
    NOTHING,
    ROWS,
    Compressor,
    Windows,
    compress_index_key,
    compress_index_key_plan,
    compress_v4,
    compress_v4_plan,
)
from kvfsm.kernels.fp8 import gather_dequantise_v4, gather_dequantise_v4_plan
from kvfsm.kernels.held import Held, Pages
from kvfsm.kernels.launch import LaunchPlan, Pointer
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.lease import Component, Lease
from kvfsm.runtime.manager import Manager

from ..hostcuda.host import HostLauncher
from .windows import CSA, HCA, INDEX

PROFILE = PROFILES["deepseek_v4_flash"]
GRANULE = PROFILE.granule
TOKENS = 2 * GRANULE
PROMPT = list(range(TOKENS + 1))
"""One more than is compressed: the last token of a prompt is always computed."""
SLOTS = {"compressed_kv": 3, "uncompressed_tail": 2, "swa_window": 6, "indexer_state": 3}

Arrays = npt.NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """What compresses rows of one layer into one part of a kind's slots, and where the rows carried over are kept."""

    kind: str
    number: int
    compressor: Compressor
    carried_by: tuple[str, str, str] | None = None  # kind and parts

    @property
    def parts(self) -> tuple[str, str]:
        return ("data", "scale") if self.kind == "compressed_kv" else ("keys", "scale")

    @property
    def entries(self) -> int:
        """Of a granule."""
        return GRANULE // self.compressor.ratio


LAYERS = (
    Layer("compressed_kv", 2, CSA, ("uncompressed_tail", "overlap_kv", "overlap_gate")),
    Layer("compressed_kv", 3, HCA),
    Layer("indexer_state", 2, INDEX, ("indexer_state", "overlap_kv", "overlap_gate")),
)


class Engine:
    """Rows of a prompt, and the launches that make entries of them."""

    def __init__(self) -> None:
        chance = np.random.default_rng(5)
        self.launcher = HostLauncher()
        self.backend = KernelBackend(self.launcher)
        self.manager = Manager(PROFILE, SLOTS, self.backend, buffers=self.backend.arenas(PROFILE, SLOTS))
        self.keys = self.manager.keys(PROMPT)
        self.rows: dict[Layer, dict[str, Arrays]] = {}
        for layer in LAYERS:
            made = layer.compressor
            shapes = {
                "kv": (TOKENS, made.width),
                "gate": (TOKENS, made.width),
                "bias": (made.ratio, made.width),
                "weight": (made.elements,),
                "rotary": (TOKENS, made.rope),
            }
            self.rows[layer] = {
                name: chance.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
            }

    def windows(self, layer: Layer, start: int, stop: int, origin: int = NOTHING) -> Windows[Arrays]:
        """Over rows of granules [start, stop) alone; ``origin`` is where the window before the first lies."""
        made, rows = layer.compressor, self.rows[layer]
        first = np.arange((stop - start) * layer.entries, dtype=np.uint32)
        origins = np.full(len(first), ROWS if made.overlaps else NOTHING, np.uint8)
        origins[0] = origin if made.overlaps else NOTHING
        own = slice(start * GRANULE, stop * GRANULE)
        return Windows(
            kv=rows["kv"][own],
            gate=rows["gate"][own],
            row_count=own.stop - own.start,
            row_stride=made.width,
            bias=rows["bias"],
            weight=rows["weight"],
            rotary=rows["rotary"],
            position_count=TOKENS,
            current=first * np.uint32(made.ratio),
            positions=(first + np.uint32(start * layer.entries)) * np.uint32(made.ratio),
            origin=origins,
            previous=np.maximum(first, 1).astype(np.uint32) * np.uint32(made.ratio) - np.uint32(made.ratio),
            most=len(first),
        )

    def compress(self, layer: Layer, fill: Fill, lease: Lease | None = None) -> Arrays:
        """Entries of all granules of a fill, where its slots lie; uint8 [entries], why one was refused."""
        plan, entries = self.plan(layer, fill, lease)
        self.launcher.launch(plan)
        return entries.refusals.download()

    def plan(self, layer: Layer, fill: Fill, lease: Lease | None = None) -> tuple[LaunchPlan, Held]:
        """The launch for that, and the entries that it makes."""
        given = self.windows(layer, fill.start, fill.stop, NOTHING if lease is None else CARRY)
        carried: dict[str, Any] = {}
        if lease is not None and layer.carried_by is not None:
            kind, *parts = layer.carried_by
            kv, gate = (self.component(lease, kind, layer.number, part) for part in parts)
            stride = layer.compressor.elements
            carried = {
                "carry_kv": self.last_of(kv),
                "carry_gate": self.last_of(gate),
                "carry_count": layer.compressor.ratio,
                "carry_stride": stride,
            }
        arrays = ("kv", "gate", "bias", "weight", "rotary", "current", "positions", "origin", "previous")
        held = {name: self.launcher.upload(np.ascontiguousarray(getattr(given, name))) for name in arrays}
        counts = {name: getattr(given, name) for name in ("row_count", "row_stride", "position_count", "most")}
        on_device: Windows[Pointer] = Windows(**{name: one.pointer for name, one in held.items()}, **counts, **carried)
        filled = self.backend.held(fill, layer.kind, layer.entries)
        plan_of = compress_v4_plan if layer.kind == "compressed_kv" else compress_index_key_plan
        places = filled.entries(self.pages(layer)), layer.entries, filled.rows.pointer
        return plan_of(layer.compressor, on_device, *places, filled.check), filled

    def pages(self, layer: Layer) -> Pages:
        return self.backend.pages(layer.kind, layer.number, *layer.parts)

    def carry(self, layer: Layer, fill: Fill, end: int) -> None:
        """The rows before token ``end``, which the window after it is pooled with, into the fill's last slot."""
        if layer.carried_by is None:
            return
        kind, kv, gate = layer.carried_by
        made, rows = layer.compressor, self.rows[layer]
        last = slice(end - made.ratio, end)
        folded = rows["gate"][last] + rows["bias"]
        for part, values in ((kv, rows["kv"][last]), (gate, folded)):
            view = fill.view(kind, part, layer.number)
            view[-1] = np.ascontiguousarray(values[:, : made.elements]).view(np.uint8)

    def prefill(self, start: int, stop: int, lease: Lease | None = None) -> Fill:
        """Granules [start, stop), from nothing or from a lease that ends there."""
        fill = self.manager.reserve(self.keys, start, stop, lease=lease)
        for layer in LAYERS:
            self.carry(layer, fill, stop * GRANULE)
            assert not self.compress(layer, fill, lease).any()
        return fill

    def acquire(self, granules: int) -> Lease:
        answer = self.manager.match(self.keys, granules * GRANULE + 1)
        assert (answer.kind, answer.length) == ("HIT", granules * GRANULE)
        return self.manager.acquire(answer)

    def read(self, layer: Layer, lease: Lease) -> Arrays:
        """Bytes of a layer's entries, uint8 [granules, page bytes]: data, then scales."""
        views = [lease.view(layer.kind, part, layer.number) for part in layer.parts]
        return np.concatenate([view.reshape(len(view), -1) for view in views], 1)

    def expected(self, layer: Layer) -> Arrays:
        """The same of the whole prompt, as the references make it."""
        made, slots = layer.compressor, np.repeat(np.arange(2, dtype=np.int32), layer.entries)
        pool, rows = self.manager.core.pools[layer.kind], np.tile(np.arange(layer.entries, dtype=np.uint32), 2)
        pages = np.zeros((2, self.page_bytes(layer)), np.uint8)
        words: Arrays = np.full(2, pool.table.LAYOUT.pack(state=pool.table.STATES["FILLING"], generation=1), np.uint64)
        ones, refusals = np.ones(len(slots), np.uint32), np.zeros(len(slots), np.uint8)
        check = Check(layer.kind, words, ones, refusals, Side.WRITER)
        reference = compress_v4 if layer.kind == "compressed_kv" else compress_index_key
        reference(made, self.windows(layer, 0, 2), pages, layer.entries, slots, rows, check)
        assert not check.refusals.any()
        return pages

    def page_bytes(self, layer: Layer) -> int:
        return sum(PROFILE.layouts[layer.kind].part(part, layer.number).payload_bytes for part in layer.parts)

    @staticmethod
    def component(holder: Fill | Lease, kind: str, layer: int, part: str) -> Component:
        (found,) = (one for one in holder.state_data_ptrs if (one.kind, one.layer, one.part) == (kind, layer, part))
        return found

    @staticmethod
    def last_of(component: Component) -> Pointer:
        """Memory of a part in the last slot."""
        return Pointer(component.base + int(component.slots[-1]) * component.stride, component.item_bytes)


def test_a_prefill_compresses_into_the_slots_of_its_fill() -> None:
    engine = Engine()
    engine.manager.publish(engine.prefill(0, 2))
    assert engine.launcher.launches["compress_v4"] == 2 and engine.launcher.launches["compress_index_key"] == 1
    with engine.acquire(2) as lease:
        for layer in LAYERS:
            assert (engine.read(layer, lease) == engine.expected(layer)).all(), layer
    assert engine.manager.audit().ok


def test_a_prefill_that_goes_on_from_a_lease_makes_the_bytes_of_a_cold_one() -> None:
    """The window before the first is the last of the other request: its rows are carried over in the leased slots."""
    engine = Engine()
    engine.manager.publish(engine.prefill(0, 1))
    with engine.acquire(1) as lease:
        fill = engine.prefill(1, 2, lease)
    engine.manager.publish(fill)
    with engine.acquire(2) as lease:
        for layer in LAYERS:
            assert (engine.read(layer, lease) == engine.expected(layer)).all(), layer
    assert engine.manager.audit().ok


def test_the_rows_carried_over_matter() -> None:
    """Control of the test above: without them the first entry is another one where windows overlap."""
    engine = Engine()
    engine.manager.publish(engine.prefill(0, 1))
    with engine.acquire(1) as lease:
        fill = engine.manager.reserve(engine.keys, 1, 2, lease=lease)
        for layer in LAYERS:
            assert not engine.compress(layer, fill).any()
    engine.manager.publish(fill)
    with engine.acquire(2) as lease:
        same = [(engine.read(layer, lease) == engine.expected(layer)).all() for layer in LAYERS]
    assert same == [False, True, False]


def test_what_was_compressed_is_attended_to_where_it_lies() -> None:
    engine = Engine()
    engine.manager.publish(engine.prefill(0, 2))
    layer = LAYERS[0]
    with engine.acquire(2) as lease:
        held = engine.backend.held(lease, layer.kind)
        counts = engine.launcher.upload(np.full(held.most, layer.entries, np.uint32))
        out = engine.launcher.empty((held.most, layer.entries, 512), np.uint16)
        read = held.entries(engine.pages(layer)), layer.entries, counts.pointer
        engine.launcher.launch(gather_dequantise_v4_plan(*read, out.pointer, held.check))
        found = out.download()
        assert len(found) == 2 and not held.refusals.download().any()
    wanted = np.zeros_like(found)
    gather_dequantise_v4(
        engine.expected(layer),
        layer.entries,
        np.arange(2, dtype=np.int32),
        np.full(2, layer.entries, np.uint32),
        wanted,
    )
    assert (found == wanted).all() and found.any()


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.kind}-{layer.number}")
def test_a_launch_that_comes_too_late_writes_nothing(layer: Layer) -> None:
    """Its fill is gone and the slots are another's: every entry is refused, by slot, and the other's bytes stay."""
    engine = Engine()
    late = engine.manager.reserve(engine.keys, 0, 2)
    plan, entries = engine.plan(layer, late)
    held = set(late.slots[layer.kind].tolist())
    engine.manager.abandon(late)
    engine.manager.publish(engine.prefill(0, 2))
    with engine.acquire(2) as lease:
        assert set(lease.slots[layer.kind].tolist()) == held
        before = engine.read(layer, lease)
        engine.backend.send_words()
        engine.launcher.launch(plan)
        assert set(entries.refusals.download().tolist()) == {Refusal.STALE}
        assert (engine.read(layer, lease) == before).all()


def test_what_is_not_held_here_has_no_entries() -> None:
    engine, other = Engine(), Engine()
    kind, fill = LAYERS[0].kind, engine.manager.reserve(engine.keys, 0, 2)
    with pytest.raises(ValueError, match=r"another backend's manager; fix: use holder.manager.backend"):
        other.backend.held(fill, kind)
    with pytest.raises(KeyError, match="there are no slots of 'ondisk_prefix' here, but of compressed_kv, "):
        engine.backend.held(fill, "ondisk_prefix")
    with pytest.raises(ValueError, match="0 entries a slot; fix: give at least 1"):
        engine.backend.held(fill, kind, 0)
    engine.manager.publish(fill)
    lease = engine.acquire(2)
    assert {name: found.tolist() for name, found in lease.generations.items()} == {
        name: engine.manager.core.pools[name].generations(slots).tolist() for name, slots in lease.slots.items()
    }
    assert engine.backend.held(lease, kind, 2).ids.download().tolist() == np.repeat(lease.slots[kind], 2).tolist()
    engine.manager.release(lease)
    for gone in (fill, lease):
        with pytest.raises(Refused) as refused:
            engine.backend.held(gone, kind)
        assert refused.value.refusal is Reason.LEASE


def test_pages_are_parts_that_lie_one_behind_the_other() -> None:
    engine, layer = Engine(), LAYERS[0]  # its manager goes with it, and then there are no pages
    backend = engine.backend
    data, scale = (backend.pages(layer.kind, layer.number, part) for part in layer.parts)
    both = backend.pages(layer.kind, layer.number, *layer.parts)
    assert both.arena.address == data.arena.address and scale.arena.address > data.arena.address
    assert both.arena.address + both.arena.bytes == scale.arena.address + scale.arena.bytes
    assert (both.stride, both.slots) == (PROFILE.layouts[layer.kind].slot_bytes, SLOTS[layer.kind])
    for parts, why in ((("scale", "data"), "'data' of layer 2 doesn't begin where 'scale' ends"), ((), "no part of")):
        with pytest.raises(ValueError, match=why):
            backend.pages(layer.kind, layer.number, *parts)
    for kind, part in ((layer.kind, "keys"), ("ondisk_prefix", "data")):
        with pytest.raises(KeyError):
            backend.pages(kind, layer.number, part)
    with pytest.raises(ValueError, match="there are no slots yet; make a manager with the backend"):
        KernelBackend(HostLauncher()).pages(layer.kind, layer.number, *layer.parts)


def test_slots_in_host_memory_have_no_pages() -> None:
    engine, layer = Engine(), LAYERS[0]
    memory = {kind: np.zeros(count * PROFILE.layouts[kind].slot_bytes, np.uint8) for kind, count in SLOTS.items()}
    engine.manager.reallocate(SLOTS, buffers=memory)
    with pytest.raises(ValueError, match="the slots of compressed_kv lie in memory of the host; fix: buffers=backend"):
        engine.backend.pages(layer.kind, layer.number, *layer.parts)
