"""Every plan function there is: each argument in turn is spoiled, and is refused where it stands, or is legal."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import kvfsm.kernels.launch
from kvfsm.kernels import checks, compress, copies, fp8, packed, topology_check, words
from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.compress import Compressor, Windows
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import LaunchPlan, LaunchRefused, Pointer
from kvfsm.kernels.packed_form import cut
from kvfsm.kernels.reading import Check, Side
from kvfsm.kernels.topology_check import Ring, Rows

from .packable import MIXED, ONE_BYTE

RECORDS = (Check, Rows, Ring, Entries, Windows, Compressor)
CUT = cut(ONE_BYTE)


def at(size: int) -> Pointer:
    """Memory that is just long enough."""
    return Pointer(4096, size)


def check(kind: str, slots: int, entries: int, versions: Pointer | None = None) -> Check[Pointer]:
    return Check(kind, at(8 * slots), at(4 * entries), at(entries), Side.READER, versions)


def four(stride: int, size: int) -> Entries:
    """Of a pool of three slots of so many bytes."""
    return Entries(at(2 * stride + size), stride, 3, at(16), 4, at(8))


GATHERED = {"entries": four(512, 256), "bytes": 256, "check": check("swa_window", 3, 4)}
V4, V32, ROWS = four(1184, 2 * 584), four(1328, 2 * 656), four(272, 2 * 132)
OF_FOUR = {"check": check("compressed_kv", 3, 4)}
OF_PAGES = OF_FOUR | {"page_rows": 2, "rows": at(16)}
OF_CUTS = OF_FOUR | {"cut": CUT, "blocks": at(16), "entries": four(16, 1)}
RING = Ring(at(128), at(8), at(8), 4)


def compressor(elements: int) -> Compressor:
    return Compressor(elements, 4, True, 64, 1e-6, rows_folded=False)


def windows(elements: int) -> Windows[Pointer]:
    """Of four entries, with rows of twice the elements, eight of them, and four carried ones."""
    row, carried = 2 * elements + 4, elements + 4
    return Windows(
        kv=at(4 * (7 * row + 2 * elements)), gate=at(4 * (7 * row + 2 * elements)), row_count=8, row_stride=row,
        bias=at(16 * 2 * elements), weight=at(4 * elements), rotary=at(4 * 64 * 5), position_count=5, current=at(16),
        positions=at(16), origin=at(4), previous=at(16), most=4, carry_kv=at(4 * (3 * carried + elements)),
        carry_gate=at(4 * (3 * carried + elements)), carry_count=4, carry_stride=carried, live=at(8),
    )  # fmt: skip


REFERENCES = {
    "words": at(40), "first": at(24), "references": 10, "machines": at(10), "slots": at(40), "count": at(4),
}  # fmt: skip

SOUND: dict[Callable[..., LaunchPlan], dict[str, Any]] = {
    copies.gather_plan: GATHERED | {"out": at(1024)},
    copies.scatter_plan: GATHERED | {"data": at(1024)},
    copies.scrub_plan: GATHERED | {"pattern": 7},
    copies.window_gather_plan: {
        "arena": at(2 * 512 + 256 + 128), "stride": 512, "slots": 3, "table": at(24), "width": 2, "block_rows": 4,
        "positions": at(24), "rows": 5, "most": 3, "row_bytes": 64, "out": at(960), "page_rows": 2,
        "page_stride": 256, "live": at(8), "check": check("swa_window", 3, 6),
    },
    copies.indexer_gather_plan: {
        "keys": at(2 * 512 + 256), "scales": at(2 * 512 + 8), "stride": 512, "slots": 3, "ids": at(12),
        "starts": at(16), "most": 3, "slot_rows": 2, "key_bytes": 128, "scale_bytes": 4, "out_keys": at(640),
        "out_scales": at(20), "out_rows": 5, "live": at(8), "check": check("indexer_state", 3, 3, at(12)),
    },
    checks.page_checksum_plan: GATHERED | {"sums": at(32)},
    checks.verified_prefix_plan: {
        "check": check("compressed_kv", 4, 7), "offsets": at(12), "ids": at(28), "slots": 4, "blocks": 7, "most": 2,
        "verified": at(8), "reasons": at(2), "sums": at(56), "wanted": at(56), "live": at(8),
    },
    topology_check.check_topology_plan: {
        "rows": Rows(at(160), at(8), at(64), 16, False, -1, 3), "count": 8, "width": 5, "captured": at(80),
        "present": at(80), "numbers": 10, "epoch": at(8), "captured_epoch": 3, "refused": at(8),
        "ring": RING, "kind": "compressed_kv", "slots": 4, "words": at(32),
        "expected": at(160), "is_first": True,
    },
    fp8.gather_dequantise_v4_plan: OF_PAGES | {"entries": V4, "out": at(8 * 1024)},
    fp8.gather_dequantise_v32_plan: OF_PAGES | {"entries": V32, "out": at(8 * 1152)},
    fp8.gather_dequantise_rows_plan: OF_PAGES | {"entries": ROWS, "width": 128, "out": at(8 * 256)},
    fp8.quantise_insert_v4_plan: OF_PAGES | {"entries": V4, "values": at(4 * 1024), "least_peak": 0.5},
    fp8.quantise_insert_v32_plan: OF_PAGES | {"entries": V32, "values": at(4 * 1152), "least_peak": 0.5},
    fp8.quantise_insert_rows_plan: OF_PAGES | {
        "entries": ROWS, "width": 128, "values": at(4 * 256), "least_peak": 0.5, "power_of_two": True,
    },
    compress.compress_plan: {
        "compressor": compressor(512), "windows": windows(512), "out": at(4 * 2048), "refusals": at(4),
    },
    compress.compress_v4_plan: OF_PAGES | {
        "compressor": compressor(512), "windows": windows(512), "entries": replace(V4, live=None), "least_peak": 0.5,
    },
    compress.compress_index_key_plan: OF_PAGES | {
        "compressor": compressor(128), "windows": windows(128), "entries": replace(ROWS, live=None),
        "least_peak": 0.5, "power_of_two": True,
    },
    packed.pack_plan: OF_CUTS | {
        "lossy": True, "out": at(3 * 96 + CUT.body_most), "out_stride": 96, "sizes": at(16),
    },
    packed.expand_plan: OF_CUTS | {"packed": at(96), "begins": at(32), "lossy": at(4)},
    words.validate_pin_plan: REFERENCES | {
        "starts": at(12), "requests": 2, "leases": at(10), "verdicts": at(2),
        "arguments": at(80 * words.width_of("validate_pin")),
    },
    words.unpin_plan: REFERENCES | {"leases": at(10), "arguments": at(80 * words.width_of("unpin"))},
    words.revalidate_plan: REFERENCES | {"refusals": at(10), "arguments": at(80 * words.width_of("revalidate"))},
    words.apply_event_plan: {
        "kind": "swa_window", "event": "slide", "words": at(40), "slot_count": 5, "count": at(4), "firings": 3,
        "slots": at(12), "arguments": at(48), "refusals": at(3),
    },
    words.put_words_plan: {
        "kind": "swa_window", "words": at(40), "slot_count": 5, "count": at(4), "values_max": 3, "slots": at(12),
        "values": at(24), "refusals": at(3),
    },
}  # fmt: skip


def leaves(given: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Arguments, and fields of those that are records, by their names from the outermost on."""
    for name, value in given.items():
        if isinstance(value, RECORDS):
            yield from (((name, field.name), getattr(value, field.name)) for field in fields(value))
        elif value is not CUT:  # it is made of a layout, and never by hand
            yield (name,), value


def changed(given: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    return given | {path[0]: value if len(path) == 1 else replace(given[path[0]], **{path[1]: value})}


SPOILED: dict[str, Callable[[Any], Any]] = {
    "None": lambda sound: None,
    "negative": lambda sound: -1,
    "a fraction": lambda sound: 1.5,
    "2**40": lambda sound: 2**40,
}
SPOILED_POINTERS: dict[str, Callable[[Pointer], Pointer]] = {
    "too short": lambda sound: Pointer(sound.address, sound.bytes - 1),
    "misaligned": lambda sound: Pointer(sound.address + 1, sound.bytes),
    "nowhere": lambda sound: Pointer(0, sound.bytes),
}

LEGAL = {
    "None": {"live", "versions", "page_rows of window_gather", "expected of check_topology"},
    "negative": {"captured_epoch", "guard", "scratch"},
    "a fraction": {"epsilon", "least_peak"},
    "2**40": {"captured_epoch"},
    # A byte may lie anywhere.
    "misaligned": {"reasons", "refused", "origin", "machines", "leases", "verdicts", "refusals", "lossy of expand"},
    # How much there is of all machines' words, and of bodies, only the device knows.
    "too short": {"words of validate_pin", "words of unpin", "words of revalidate", "packed of expand"},
}
"""What an argument may be all the same, by kernel where only one's may."""

REQUIRED = {"live of check_topology"}
"""What LEGAL says of others of the name."""

UNUSED = {"refusals of verified_prefix"}
"""Fields that a kernel doesn't take."""

TOLD_AT = {
    "kind": {"machine"},
    "versions": {"versions", "machine"},  # most kernels compare none
    "side of verified_prefix": {"machine"},
    "count of check_topology": {"rows"},
    "stride": {"stride", "arena", "keys"},  # a long one needs a longer arena
    "page_stride": {"page_stride", "stride"},
    "out_stride": {"out_stride", "out"},
    "scales": {"scales", "out_scales"},  # one without the other
    "out_scales": {"out_scales", "scales"},
    "sums": {"sums", "wanted"},
    "wanted": {"wanted", "sums"},
    "words of check_topology": {"words", "expected"},
}
"""Arguments at which a fault is told, where it isn't that of the same name alone."""


def spoiled(plan: Callable[..., LaunchPlan]) -> Iterator[tuple[tuple[str, ...], str, Any, set[str]]]:
    """(place, what is wrong, value, where it is told: nowhere if it is legal), of each argument in turn."""
    kernel = plan.__name__.removesuffix("_plan")
    for path, sound in leaves(SOUND[plan]):
        names = (f"{path[-1]} of {kernel}", path[-1])
        if UNUSED & {*names}:
            continue
        for what, spoil in (SPOILED | SPOILED_POINTERS if isinstance(sound, Pointer) else SPOILED).items():
            told = next((TOLD_AT[name] for name in names if name in TOLD_AT), {path[-1]})
            is_legal = LEGAL.get(what, set()) & {*names} and not REQUIRED & {*names}
            yield path, what, spoil(sound), set() if is_legal else told


def refusal_of(plan: Callable[..., LaunchPlan], given: dict[str, Any]) -> str | None:
    try:
        plan(**given)
    except LaunchRefused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("plan", SOUND, ids=lambda plan: plan.__name__)
def test_a_spoiled_argument_is_refused_where_it_stands(plan: Callable[..., LaunchPlan]) -> None:
    count = 0
    for path, what, value, where in spoiled(plan):
        said = refusal_of(plan, changed(SOUND[plan], path, value))
        if not where:
            assert said is None, (path, what)
            continue
        assert said is not None, (path, what)
        assert any(f" '{name}' (" in said or f" for {name}=" in said for name in where), (path, what, said)
        assert "; fix: " in said
        count += 1
    assert count >= 20


@pytest.mark.parametrize("plan", SOUND, ids=lambda plan: plan.__name__)
def test_a_sound_plan_is_made_and_carries_what_it_is_given(plan: Callable[..., LaunchPlan]) -> None:
    values = plan(**SOUND[plan]).named()
    for path, sound in leaves(SOUND[plan]):
        if path[-1] in values and path[-1] not in ("side", "event", "rows", "live"):
            assert values[path[-1]] == sound


SIZES = {
    "uint8": 1, "int8": 1, "bool": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4,
    "float32": 4, "uint64": 8, "int64": 8, "float64": 8, "complex64": 8,
}  # fmt: skip
"""Bytes of an element."""


@pytest.mark.parametrize("plan", SOUND, ids=lambda plan: plan.__name__)
def test_elements_are_those_of_the_argument(plan: Callable[..., LaunchPlan]) -> None:
    """Bytes may be those of any array. Others have the size, and are floats where floats are meant; u16 are both."""
    kernel = plan(**SOUND[plan]).kernel
    arguments = {argument.name: argument for argument in kernel.arguments}
    seen = set()
    for path, sound in leaves(SOUND[plan]):
        if not isinstance(sound, Pointer) or f"{path[-1]} of {kernel.name}" in UNUSED:
            continue
        argument = arguments[path[-1]]
        seen.add(path[-1])
        for dtype, size in SIZES.items():
            is_float = "float" in dtype or "complex" in dtype
            fits = size == argument.dtype.itemsize and is_float == (argument.dtype.kind == "f")
            if argument.dtype.itemsize == 2:
                fits = size == 2
            said = refusal_of(plan, changed(SOUND[plan], path, replace(sound, dtype=dtype)))
            if fits or argument.dtype.itemsize == 1:
                assert said is None, (path, dtype)
            else:
                assert said is not None and f"'{path[-1]}' ({argument.type}) holds {dtype}; fix: pass " in said
    assert seen


def records(plan: Callable[..., LaunchPlan]) -> Iterator[str]:
    """Arguments that are records, those among them that nobody makes by hand too."""
    return (name for name, value in SOUND[plan].items() if is_dataclass(value) and not isinstance(value, Pointer))


TAKEN = [(plan, name) for plan in SOUND for name in records(plan)]


@pytest.mark.parametrize(("plan", "name"), TAKEN, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_no_such_record_is_refused_at_what_comes_from_it(plan: Callable[..., LaunchPlan], name: str) -> None:
    sound = SOUND[plan]
    record = type(sound[name])
    wanted = "a [Cc]heck" if record is Check else record.__name__
    symbol = plan(**sound).kernel.symbol
    told = rf"{symbol}: argument \d+ '\w+' .* comes from {wanted}, not from .*; fix: pass {wanted}$"
    for given in (5, "swa_window", {"kind": "swa_window"}, record, RING if record is Entries else V4):
        with pytest.raises(LaunchRefused, match=told):
            plan(**sound | {name: given})


@pytest.mark.parametrize("value", [-1.0, -1e-6, math.nan, math.inf, -math.inf, -1])
@pytest.mark.parametrize(
    ("plan", "path"),
    [(plan, path) for plan, given in SOUND.items() for path, _ in leaves(given) if path[-1] in LEGAL["a fraction"]],
    ids=lambda value: value[-1] if isinstance(value, tuple) else value.__name__,
)
def test_a_number_that_makes_every_entry_no_number_is_refused(
    plan: Callable[..., LaunchPlan], path: tuple[str, ...], value: float
) -> None:
    with pytest.raises(
        LaunchRefused, match=rf"'{path[-1]}' \(float\) is {value}; fix: pass a finite number of at least"
    ):
        plan(**changed(SOUND[plan], path, value))
    assert not plan(**changed(SOUND[plan], path, 1)).is_empty


def test_every_plan_function_there_is_is_among_them() -> None:
    folder = Path(kvfsm.kernels.launch.__file__).parent
    modules = (importlib.import_module(f"kvfsm.kernels.{one.name}") for one in pkgutil.iter_modules([str(folder)]))
    found = {
        value for module in modules for name, value in vars(module).items()
        if name.endswith("_plan") and not name.startswith("_")
    }  # fmt: skip
    assert found == {*SOUND}
    assert {plan(**given).kernel.name for plan, given in SOUND.items()} == {*catalogue()}


STRIDED = [(plan, path) for plan, given in SOUND.items() for path, _ in leaves(given) if path[-1] == "stride"]


@pytest.mark.parametrize("stride", [0, 16], ids=["none", "too short"])
@pytest.mark.parametrize(("plan", "path"), STRIDED, ids=lambda value: getattr(value, "__name__", ""))
def test_slots_never_overlap(plan: Callable[..., LaunchPlan], path: tuple[str, ...], stride: int) -> None:
    given = SOUND[plan]
    if plan in (packed.pack_plan, packed.expand_plan):  # whose slots here have one byte
        layout = cut(MIXED)
        entries = four(MIXED.slot_bytes, MIXED.slot_bytes)
        given = given | {"cut": layout, "blocks": at(16 * layout.count), "entries": entries}
        given = given | ({"out": at(1 << 20), "out_stride": 32768} if plan is packed.pack_plan else {})
    assert not plan(**given).is_empty
    with pytest.raises(LaunchRefused, match=rf"'stride' \(u64\) is {stride}; fix: \d+ bytes of a slot need a stride"):
        plan(**changed(given, path, stride))


COUNTS_FROM_ONE = {
    copies.window_gather_plan: ("width", "block_rows", "page_rows", "row_bytes", "rows"),
    copies.indexer_gather_plan: ("slot_rows", "key_bytes"),
    topology_check.check_topology_plan: ("rows.span", "ring.capacity"),
    fp8.gather_dequantise_rows_plan: ("width",),
    fp8.quantise_insert_rows_plan: ("width",),
    compress.compress_plan: ("compressor.elements", "compressor.ratio"),
}


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        pytest.param(plan, name, id=f"{plan.__name__}-{name}")
        for plan, names in COUNTS_FROM_ONE.items()
        for name in names
    ],
)
def test_there_is_at_least_one(plan: Callable[..., LaunchPlan], name: str) -> None:
    path = tuple(name.split("."))
    with pytest.raises(LaunchRefused, match=rf"'{path[-1]}' \(u32\) is 0; fix: "):
        plan(**changed(SOUND[plan], path, 0))


PAGED = [plan for plan, given in SOUND.items() if {"entries", "page_rows"} <= given.keys()]


@pytest.mark.parametrize("plan", PAGED, ids=lambda plan: plan.__name__)
def test_a_page_is_no_longer_than_kernels_count(plan: Callable[..., LaunchPlan]) -> None:
    """Else a page that is refused would be cleared in part only."""
    with pytest.raises(LaunchRefused, match=r"'page_rows' .* is 65537; fix: pass at most 65536"):
        plan(**SOUND[plan] | {"page_rows": 65537})


CHECKED = [plan for plan, given in SOUND.items() if "check" in given and plan is not copies.indexer_gather_plan]


@pytest.mark.parametrize("plan", CHECKED, ids=lambda plan: plan.__name__)
def test_versions_that_nobody_would_compare_are_refused(plan: Callable[..., LaunchPlan]) -> None:
    with pytest.raises(LaunchRefused, match=r"'machine' .* comes with versions, .*; fix: pass versions=None"):
        plan(**changed(SOUND[plan], ("check", "versions"), at(1 << 20)))


def test_versions_are_an_indexers() -> None:
    """The kernel compares them where indexer_state's words have theirs; other kinds have other bits there."""
    given = changed(SOUND[copies.indexer_gather_plan], ("check", "kind"), "compressed_kv")
    with pytest.raises(LaunchRefused, match=r"'versions' .* is for 'compressed_kv', and keys alone"):
        copies.indexer_gather_plan(**given)


@pytest.mark.parametrize("plan", CHECKED, ids=lambda plan: plan.__name__)
def test_a_bool_is_no_number_and_a_number_no_flag(plan: Callable[..., LaunchPlan]) -> None:
    for path, sound in leaves(SOUND[plan]):
        swapped = True if type(sound) is int else 1 if type(sound) is bool else None
        if swapped is not None:
            with pytest.raises(LaunchRefused, match=f"'{path[-1]}' "):
                plan(**changed(SOUND[plan], path, swapped))
