"""Granules, layouts and profiles: the figures of real models, and everything that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.layout import Layout, Part
from kvfsm.runtime.profile import Group, Profile, ProfileError, Profiles, granule_report
from kvfsm.runtime.profile_plan import GroupPlan, PagePlan, PartPlan, ProfilePlan, lay_out

GIB, MIB, TOKENS = 1 << 30, 1 << 20, 1 << 20


def gib_at_a_million(name: str) -> float:
    """All that grows with the sequence, at 1,048,576 tokens."""
    profile = PROFILES[name]
    return float(sum(profile.bytes_per_token(kind) for kind in profile.kinds) * TOKENS / GIB)


def one_part(**changes: object) -> Part:
    part = Part("keys", 0, 0, 4, 64, (16,), "float32", "key")
    return replace(part, **changes)  # type: ignore[arg-type]


def layout_of(*parts: Part, slot_bytes: int = 256, alignment: int = 64) -> Layout:
    return Layout("compressed_kv", 1, parts, slot_bytes, alignment)


# The granule


def test_h05_incommensurate_spans_lengthen_the_granule_and_the_report_says_so() -> None:
    report = granule_report({"target": 1536, "draft": 3456})
    assert report.granule == 13824
    assert not report.commensurate
    assert report.floor(69_000) == 55_296, "67584 would be no whole number of the draft's blocks"
    assert 67_584 % 3456 != 0
    assert "A=13824" in report.text
    assert "WARNING" in report.text


def test_h05_a_span_that_divides_keeps_the_granule_short() -> None:
    report = granule_report({"target": 1536, "draft": 768})
    assert (report.granule, report.commensurate, report.floor(69_000)) == (1536, True, 67_584)
    assert "WARNING" not in report.text


def test_h05_padding_lowers_the_span_that_does_not_fit() -> None:
    report = granule_report({"target": 1536, "draft": 3456}, incommensurate="pad")
    assert (report.granule, report.floor(69_000)) == (1536, 67_584)
    draft = report.spans[1]
    assert (draft.asked, draft.span) == (3456, 1536)
    assert "padded from 3456" in report.text


def test_h05_refusal_names_the_spans_that_would_do() -> None:
    with pytest.raises(ProfileError, match=r"A=13824.*\n.*draft=1536"):
        granule_report({"target": 1536, "draft": 3456}, incommensurate="refuse")


def test_refusal_and_padding_leave_commensurate_spans_alone() -> None:
    for how in ("refuse", "pad"):
        report = granule_report([256, 64, 128], incommensurate=how)  # type: ignore[arg-type]
        assert [entry.span for entry in report.spans] == [256, 64, 128]


def test_h06_one_coarse_group_sets_the_granule_of_all() -> None:
    report = granule_report([128, 4096, 32, 2, 8])
    assert report.granule == 4096
    assert [report.floor(tokens) for tokens in (2048, 4095, 4096, 4097, 12_000)] == [0, 0, 4096, 4096, 8192]
    assert "up to 4096 tokens never hit" in report.text


@pytest.mark.parametrize("spans", [(4, 6), (6, 10, 15), (7, 5, 3), (1536, 3456), (12, 18, 27, 5)])
def test_padded_spans_divide_the_granule_and_never_grow(spans: tuple[int, ...]) -> None:
    report = granule_report(spans, incommensurate="pad")
    assert report.commensurate
    assert report.spans[0].span == spans[0]
    for entry in report.spans:
        assert entry.span <= entry.asked
        assert report.granule % entry.span == 0


@pytest.mark.parametrize("spans", [[], [0], [16, -4]])
def test_spans_must_be_positive(spans: list[int]) -> None:
    with pytest.raises(ProfileError):
        granule_report(spans)


def test_every_profile_has_a_granule_that_all_spans_divide() -> None:
    for name, profile in PROFILES.items():
        assert profile.granule % profile.lcm == 0, name
        assert profile.report().granule == profile.lcm
        assert profile.floor(profile.granule * 3 + 1) == profile.granule * 3
        for group in profile.groups:
            assert group.ratio * group.block_rows == group.span, "S22: ratio x rows is the span"


# The figures of real models


@pytest.mark.parametrize(
    ("name", "gib"),
    [("deepseek_v4_pro", 5.38), ("deepseek_v4_pro_bf16", 9.62), ("deepseek_v4_flash", 3.76)],
)
def test_memory_at_a_million_tokens_is_what_the_papers_say(name: str, gib: float) -> None:
    assert round(gib_at_a_million(name), 2) == gib


def test_sparse_indexer_and_heavy_entries_have_their_shares() -> None:
    pro = PROFILES["deepseek_v4_pro"]
    csa, hca = (group.layers for group in pro.groups_of("compressed_kv"))
    assert (len(csa), len(hca)) == (30, 31)
    shares = [sum(p.payload_bytes for p in pro.layouts["compressed_kv"].parts if p.layer in own) for own in (csa, hca)]
    assert [round(share / pro.granule * TOKENS / GIB, 2) for share in shares] == [4.28, 0.14]
    assert round(float(pro.bytes_per_token("indexer_state")) * TOKENS / GIB, 2) == 0.97


@pytest.mark.parametrize(("name", "mib"), [("deepseek_v4_flash", 3.5), ("deepseek_v4_pro", 4.9)])
def test_a_checkpoint_needs_the_window_and_the_carried_rows_only(name: str, mib: float) -> None:
    profile = PROFILES[name]
    assert round(profile.checkpoint_bytes(profile.granule) / MIB, 1) == mib
    assert profile.checkpoint_bytes(profile.granule) == profile.checkpoint_bytes(9 * profile.granule)


def test_rows_wait_between_boundaries() -> None:
    profile = PROFILES["deepseek_v4_flash"]
    at_boundary = profile.checkpoint_bytes(profile.granule)
    assert profile.checkpoint_bytes(profile.granule + 127) > at_boundary
    part = profile.layouts["uncompressed_tail"].part("pending_kv", 3)
    assert [part.live_rows(position) for position in (256, 257, 383, 384)] == [0, 1, 127, 0]


def test_windows_of_real_models_take_what_was_measured() -> None:
    assert round(PROFILES["deepseek_v4_pro"].layouts["swa_window"].payload_bytes / MIB, 2) == 4.35
    assert round(PROFILES["deepseek_v4_flash"].layouts["swa_window"].payload_bytes / MIB, 2) == 3.07
    assert PROFILES["gpt_oss"].window_slots == 8
    assert PROFILES["gemma3"].window_slots == 64
    assert PROFILES["deepseek_v4_pro"].window_slots == 1
    assert PROFILES["llama"].window_slots == 0


def test_pages_are_split_and_padded_as_the_kernels_read_them() -> None:
    flash = PROFILES["deepseek_v4_flash"]
    kv = flash.layouts["compressed_kv"]
    assert kv.slot_bytes == 21 * 37_440 + 20 * 1_728
    assert (kv.part("scale", 2).offset - kv.part("data", 2).offset) == 64 * 576, "all data rows come before all scales"
    assert kv.part("data", 4).offset - kv.part("data", 2).offset == 37_440
    assert kv.part("data", 5).offset - kv.part("data", 3).offset == 1_728
    index = flash.layouts["indexer_state"]
    keys = index.part("keys", 2)
    assert (keys.offset % 576, index.part("scale", 2).offset - keys.offset) == (0, 8192)
    window = flash.layouts["swa_window"]
    assert window.part("data.1", 0).offset - window.part("data.0", 0).offset == 37_440
    assert all(layout.slot_bytes % layout.alignment == 0 for layout in flash.layouts.values())


def test_the_v4_block_of_one_engine_is_reproduced() -> None:
    """1,002,240 bytes: C4, C128 and C4 indexer pages of 256 tokens over 62 layers."""
    flash = PROFILES["deepseek_v4_flash"]
    indexer_pages = len(flash.groups_of("indexer_state")[0].layers) * 8_640
    assert flash.layouts["compressed_kv"].slot_bytes + indexer_pages == 1_002_240


def test_v32_rows_are_those_of_its_kernels() -> None:
    profile = PROFILES["deepseek_v32"]
    assert profile.bytes_per_token("compressed_kv") == 61 * 656
    assert profile.bytes_per_token("indexer_state") == 61 * 132
    assert profile.absent == ("uncompressed_tail", "swa_window")


def test_full_attention_counts_keys_and_values_of_each_head() -> None:
    assert PROFILES["llama"].bytes_per_token("compressed_kv") == Fraction(32 * 2 * 8 * 128 * 2)
    assert PROFILES["llama"].kinds == ("compressed_kv",)


# Meaning is part of a layout


def test_scores_with_the_bias_folded_in_are_another_layout() -> None:
    layout = PROFILES["tiny_deepseek_v4"].layouts["uncompressed_tail"]
    parts = tuple(
        replace(part, meaning="gate_raw") if part.meaning == "gate_bias_folded" else part for part in layout.parts
    )
    raw = replace(layout, parts=parts)
    assert [(p.offset, p.rows, p.row_bytes, p.dtype) for p in raw.parts] == [
        (p.offset, p.rows, p.row_bytes, p.dtype) for p in layout.parts
    ]
    assert raw.digest != layout.digest


@pytest.mark.parametrize(
    "change",
    [
        {"name": "values"},
        {"layer": 1},
        {"offset": 64},
        {"rows": 2},
        {"row_shape": (4, 4)},
        {"dtype": "int32"},
        {"meaning": "value"},
        {"role": "carry"},
        {"ratio": 4},
    ],
)
def test_the_digest_covers_every_field_of_a_part(change: dict[str, object]) -> None:
    plain = layout_of(one_part(), slot_bytes=512)
    assert layout_of(one_part(**change), slot_bytes=512).digest != plain.digest


def test_the_digest_covers_stride_alignment_kind_and_order() -> None:
    first, second = one_part(rows=1), one_part(name="values", offset=64, rows=1)
    plain = layout_of(first, second)
    swapped = layout_of(replace(second, offset=0), replace(first, offset=64))
    digests = {
        plain.digest,
        swapped.digest,
        layout_of(first, second, slot_bytes=512).digest,
        layout_of(first, second, alignment=128).digest,
        replace(plain, kind="swa_window").digest,
    }
    assert len(digests) == 5


def test_the_digest_is_stable_and_leaves_the_id_out() -> None:
    plain = layout_of(one_part())
    assert plain.digest == layout_of(one_part()).digest == replace(plain, layout_id=7).digest
    # Stored objects name their layout by this digest: another value orphans every store.
    assert plain.digest == "40ac1c14277ec58c266eea2a30a21b434c41f259cadfe67c05c67c6adceb1fe6"


def test_all_layouts_of_all_profiles_differ_between_kinds() -> None:
    for profile in PROFILES.values():
        digests = [layout.digest for layout in profile.layouts.values()]
        assert len(set(digests)) == len(digests)
        assert [layout.layout_id for layout in profile.layouts.values()] == list(range(1, len(digests) + 1))


# What a layout refuses (S22)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layout_of(one_part(), slot_bytes=192), "past the stride of 192.*\n.*use a stride of 256"),
        (lambda: layout_of(one_part(), slot_bytes=300), "not a multiple of the alignment 64.*\n.*320"),
        (lambda: layout_of(one_part(row_bytes=60)), r"shape \(16,\) of float32 takes 64"),
        (lambda: layout_of(one_part(dtype="fp4")), "unknown dtype 'fp4'"),
        (lambda: layout_of(one_part(rows=2), one_part(name="b", offset=64, rows=1)), "starts at byte 64, before"),
        (lambda: layout_of(one_part(offset=2, rows=1)), "off the 4-byte elements"),
        (lambda: layout_of(one_part(rows=1), one_part(offset=64, rows=1)), "declared twice"),
        (lambda: layout_of(one_part(rows=0)), "at least 1"),
        (lambda: layout_of(), "has no parts"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(make: Callable[[], Layout], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        make()


def test_h22_a_pool_past_the_offset_width_is_refused_and_the_cap_named() -> None:
    page = Part("keys", 0, 0, 1, 1_002_240, (1_002_240,), "uint8", "index_key")
    layout = Layout("indexer_state", 1, (page,), 1_002_240, 64)
    with pytest.raises(ProfileError, match="use 1 to 2143 slots"):
        layout.check_pool(213_950, offset_bits=32)
    with pytest.raises(ProfileError):
        layout.check_pool(2_144, offset_bits=32)
    layout.check_pool(2_143, offset_bits=32)
    assert 2_142 * layout.slot_bytes == 2_146_798_080 < 1 << 31
    layout.check_pool(213_950, offset_bits=64)
    assert layout.copy_ranges(2_143) == ((2_147_800_320, 1_002_240),)
    with pytest.raises(ProfileError, match=r"pool of indexer_state: 0 slots\n  fix: use 1 to .* slots$"):
        layout.check_pool(0)


def test_h21_alignment_follows_the_io_mode_in_force() -> None:
    part = Part("keys", 0, 0, 1, 3_098_112, (3_098_112,), "uint8", "key")
    layout = Layout("compressed_kv", 1, (part,), 3_098_112, 512)
    assert layout.check_io("buffered", 4096) == 3_098_112
    with pytest.raises(ProfileError, match="pad the stride to 3100672"):
        layout.check_io("direct", 4096)
    assert layout.check_io("direct", 4096, pad=True) == 3_100_672
    assert layout.check_io("direct", 512) == 3_098_112


def test_h20_memory_that_is_announced_otherwise_is_refused() -> None:
    """All keys, then all values; announced as keys and values in turn."""
    keys, values = one_part(rows=2), one_part(name="values", offset=128, rows=2)
    record = layout_of(keys, values)
    record.check_same(layout_of(keys, values))
    interleaved = layout_of(replace(keys, rows=1), replace(values, offset=64, rows=1), slot_bytes=128)
    with pytest.raises(ProfileError, match=r"slot_bytes: 256, not 128 and 3 more"):
        record.check_same(interleaved)
    with pytest.raises(ProfileError, match="in another order"):
        record.check_same(layout_of(replace(values, offset=0), replace(keys, offset=128)))


def test_a_difference_in_meaning_alone_is_named() -> None:
    record = layout_of(one_part(meaning="gate_bias_folded"))
    other = layout_of(one_part(meaning="gate_raw"))
    assert record.differences(other) == ("layer 0 part 'keys' meaning: gate_bias_folded, not gate_raw",)
    assert record.differences(layout_of(one_part(meaning="gate_bias_folded"))) == ()


def test_parts_are_found_by_name_and_layer() -> None:
    layout = PROFILES["tiny_deepseek_v4"].layouts["swa_window"]
    assert layout.layers == (0, 1, 2, 3, 4)
    assert layout.part("values", 0).meaning == "value"
    with pytest.raises(KeyError, match="no part 'values' in layer 2"):
        layout.part("values", 2)


def test_h20_copies_follow_declared_offsets() -> None:
    apart = Layout("compressed_kv", 1, (one_part(rows=1), one_part(name="values", offset=128, rows=1)), 256, 64)
    assert apart.copy_ranges(2) == ((512, 64), (640, 64))
    assert apart.copy_ranges(0, base=4096) == ((4096, 64), (4224, 64))


# What a profile refuses


def tiny() -> Profile:
    return PROFILES["tiny_deepseek_v4"]


def test_the_shipped_profile_passes_its_own_checks() -> None:
    assert replace(tiny()) == tiny()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"granule": 24}, "granule 24 is not a multiple of A=16.*\n.*such as 32"),
        ({"granule": 64}, "rows x ratio .* is not the granule 64"),
        ({"window": 17}, r"groups have windows \[16\]"),
        ({"retained": 1}, "19 rows, but a window slot holds 16"),
        ({"window_policy": None}, "give both or neither"),
        ({"window_policy": "blocks"}, "with window_block None"),
        ({"window_block": 16}, '"blocks" only'),
        ({"layouts": {}}, "give one layout an object"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        replace(tiny(), **change)  # type: ignore[arg-type]


def test_a_layer_in_two_groups_of_one_object_is_refused() -> None:
    profile = tiny()
    again = replace(profile.groups[0], name="again")
    with pytest.raises(ProfileError, match="layer 2 keeps compressed_kv in groups 'csa' and 'again'"):
        replace(profile, groups=(*profile.groups, again))


def test_a_window_block_that_does_not_divide_the_granule_is_refused() -> None:
    with pytest.raises(ProfileError, match="window_block 3 doesn't divide the granule 8"):
        replace(PROFILES["tiny_gpt_oss"], window_block=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("g", "compressed_kv", (0,), 4, 6), "ratio 4 doesn't divide the span 6.*\n.*use a span of 8"),
        (("g", "compressed_kv", (0,), 0, 6), "at least 1 token"),
        (("g", "compressed_kv", (0, 0), 1, 1), "list each layer once"),
        (("g", "compressed_kv", (), 1, 1), "list each layer once"),
    ],
)
def test_a_group_that_does_not_fit_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Group(*arguments)  # type: ignore[arg-type]


def test_an_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(KeyError, match="tiny_deepseek_v4"):
        PROFILES["tiny-deepseek-v4"]


def test_profiles_are_made_once_and_only_when_asked_for() -> None:
    made: list[str] = []

    def make() -> Profile:
        made.append("llama")
        return PROFILES["llama"]

    profiles = Profiles({"llama": make})
    assert (list(profiles), len(profiles), made) == (["llama"], 1, [])
    assert profiles["llama"] is profiles["llama"]
    assert made == ["llama"]


# Plans


def test_parts_without_a_page_lie_one_after_the_other() -> None:
    parts = (PartPlan("a", 3, (5,), "uint8", "key"), PartPlan("b", 3, (5,), "uint8", "value"))
    layout = lay_out([GroupPlan("g", "compressed_kv", (0, 1), parts)], 64)["compressed_kv"]
    assert [(part.layer, part.name, part.offset) for part in layout.parts] == [
        (0, "a", 0),
        (0, "b", 16),
        (1, "a", 32),
        (1, "b", 48),
    ]
    assert layout.slot_bytes == 64


def test_a_page_holds_all_of_its_parts_and_carried_rows_follow() -> None:
    parts = (
        PartPlan("a", 4, (8,), "uint8", "key"),
        PartPlan("b", 4, (1,), "float32", "scale"),
        PartPlan("c", 2, (16,), "uint8", "kv", "carry"),
    )
    layout = lay_out([GroupPlan("g", "compressed_kv", (0,), parts, page=PagePlan(2, 32))], 64)["compressed_kv"]
    assert [(part.name, part.offset, part.rows) for part in layout.parts] == [
        ("a.0", 0, 2),
        ("b.0", 16, 2),
        ("a.1", 32, 2),
        ("b.1", 48, 2),
        ("c", 64, 2),
    ]
    assert layout.slot_bytes == 128


def test_pages_that_rows_do_not_fill_are_refused() -> None:
    plan = GroupPlan("g", "compressed_kv", (0,), (PartPlan("a", 6, (8,), "uint8", "key"),), page=PagePlan(4))
    with pytest.raises(ProfileError, match="rows in pages of 4"):
        lay_out([plan], 64)


def test_a_plan_with_a_wrong_dtype_names_those_there_are() -> None:
    plan = ProfilePlan(
        name="x",
        title="x",
        source="x",
        granule=4,
        identity="x",
        groups=(GroupPlan("g", "compressed_kv", (0,), (PartPlan("a", 4, (8,), "float9", "key"),)),),
    )
    with pytest.raises(ProfileError, match=r"float9.*\n.*float32"):
        plan.profile()
