"""Model profiles are read with every mistake noted at its place."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from kvfsm.runtime.layout import ITEM_BYTES as RUNTIME_ITEM_BYTES
from kvfsm.spec.language.problems import Problem, Problems
from kvfsm.spec.language.profile import ITEM_BYTES, ProfileSpec, read_profile

MODELS = sorted(Path(str(files("kvfsm.spec").joinpath("models"))).glob("*.yaml"))
OBJECTS = ("compressed_kv", "uncompressed_tail", "swa_window", "indexer_state")
GOOD = """\
model: small
title: A small model
source: made up
granule: 32
layer_count: 4
window: 9
window_policy: checkpoint
identity: {weights: w, positions: rope, dtype: float32, scores: folded}
groups:
  csa:
    object: compressed_kv
    layers: [1, 3]
    ratio: 4
    parts:
      entries: {rows: entries, shape: [32], dtype: float32, meaning: latent, row_bytes: 128}
  tail:
    object: uncompressed_tail
    layers: {from: 1, below: 4, every: 2}
    ratio: 4
    parts:
      gate: {rows: carry, shape: [32], dtype: float32, meaning: gate_bias_folded}
      wait: {rows: pending, shape: [64], dtype: float32, meaning: gate_raw}
  window:
    object: swa_window
    layers: {from: 0, below: 4, but: [2]}
    page: {rows: 4, align: 64, bytes: 128}
    parts:
      keys: {rows: window, shape: [7], dtype: float32, meaning: key}
"""


def read(tmp_path: Path, text: str) -> tuple[ProfileSpec | None, tuple[Problem, ...]]:
    path = tmp_path / "small.yaml"
    path.write_text(text, "utf-8")
    problems = Problems()
    profile = read_profile(path, "small.yaml", OBJECTS, problems)
    return profile, problems.sorted()


def test_a_good_profile_is_read_whole(tmp_path: Path) -> None:
    profile, problems = read(tmp_path, GOOD)
    assert problems == ()
    assert profile is not None
    assert [group.layers for group in profile.groups] == [(1, 3), (1, 3), (0, 1, 3)]
    assert [group.span for group in profile.groups] == [4, 4, 4]
    assert profile.lcm == 4
    assert [(part.role, part.rows) for group in profile.groups for part in group.parts] == [
        ("entries", 8),
        ("carry", 4),
        ("pending", 3),
        ("window", 8),
    ]
    assert profile.identity.text == "weights=w;positions=rope;dtype=float32;scores=folded"


def test_blocks_and_retained_rows_set_the_rows_of_a_window_slot(tmp_path: Path) -> None:
    profile, problems = read(tmp_path, GOOD.replace("checkpoint", "blocks\nwindow_block: 16"))
    assert profile is not None, problems
    assert profile.groups[2].parts[0].rows == 16
    profile, problems = read(tmp_path, GOOD.replace("checkpoint", "checkpoint\nretained: 4"))
    assert profile is not None, problems
    assert profile.groups[2].parts[0].rows == 12


def test_a_plain_number_of_rows_is_a_fixed_carry(tmp_path: Path) -> None:
    profile, problems = read(tmp_path, GOOD.replace("rows: carry", "rows: 6"))
    assert profile is not None, problems
    assert (profile.groups[1].parts[0].role, profile.groups[1].parts[0].rows) == ("carry", 6)


MISTAKES = [
    # replaced, by, code, line, part of the message, part of the fix
    ("granule: 32", "granule: 30", "E501", 13, "a ratio of 4 does not divide the granule 30", "such as 60"),
    (
        "    ratio: 4\n    parts:\n      entries",
        "    ratio: 4\n    span: 24\n    parts:\n      entries",
        "E501",
        4,
        "LCM of the spans (csa 24, tail 4, window 4)",
        "use 48",
    ),
    ("[1, 3]", "[1, 4]", "E502", 12, "names layer 4, but the model has 4 layers", "use 0 to 3"),
    ("{from: 1, below: 4, every: 2}", "{from: 1, below: 5}", "E502", 18, "ends below layer 5", "use at most 4"),
    ("{from: 1, below: 4, every: 2}", "{from: 3, below: 3}", "E502", 18, "[3, 3) is empty", "below the end"),
    ("[1, 3]", "[1, 1]", "E503", 12, "names layer 1 twice", "once"),
    (
        "uncompressed_tail",
        "compressed_kv",
        "E503",
        16,
        "layer 1 keeps compressed_kv in group 'csa' already",
        "'csa' or 'tail'",
    ),
    (
        "dtype: float32, meaning: latent",
        "dtype: float23, meaning: latent",
        "E504",
        15,
        "unknown dtype 'float23'",
        "closest: float32",
    ),
    (
        "row_bytes: 128",
        "row_bytes: 64",
        "E505",
        15,
        "states 64 bytes a row, but [32] of float32 takes 128",
        "write 128",
    ),
    ("window: 9", "alignment: 48\nwindow: 9", "E506", 6, "48 is not a power of two", "use 64"),
    ("64, bytes: 128", "64, bytes: 112", "E506", 26, "112 bytes of rows padded to 64 make 128", "write 128"),
    ("window: 9\nwindow_policy: checkpoint\n", "", "E507", 26, "the profile has no window", "add 'window:'"),
    ("window: 9\n", "", "E507", 6, "'window_policy' without a window", "add 'window:'"),
    ("window_policy: checkpoint\n", "", "E507", 6, "the window has no policy", "window_policy: blocks"),
    ("window: 9\n", "window: 9\nretained: 2\ndrafts: 3\n", "E507", 7, "2 rows retained, and 3 drafts", "'retained: 3'"),
    ("checkpoint", "blocks", "E508", 7, "does not say how long a block is", "window_block"),
    ("checkpoint", "checkpoint\nwindow_block: 8", "E508", 8, "has no blocks", "drop"),
    ("checkpoint", "blocks\nwindow_block: 12", "E501", 8, "12 tokens does not divide the granule 32", "such as 96"),
    (
        "object: swa_window",
        "object: swa_windows",
        "E509",
        24,
        "which is not an object of layers",
        "closest: swa_window",
    ),
    ("page: {rows: 4, ", "page: {rows: 3, ", "E510", 26, "has 8 rows, no whole number of pages of 3", "divisor of 8"),
    (
        "    ratio: 4\n    parts:\n      entries",
        "    ratio: 4\n    span: 6\n    parts:\n      entries",
        "E510",
        14,
        "no whole number of rows of 4 tokens",
        "use 8",
    ),
    (
        "meaning: gate_bias_folded",
        "meaning: gate_raw",
        "E511",
        21,
        "holds raw scores, but the identity says 'folded'",
        "scores: raw",
    ),
    (", scores: folded", "", "E511", 21, "the identity says 'none'", "scores: folded"),
    ("model: small", "model: smal", "E512", 1, "stands in small.yaml", "model: small"),
    ("weights: w,", "weights: a b,", "E513", 8, "may not hold blanks", "a-b"),
    ("meaning: latent", "meaning: Latent", "E513", 15, "lower_snake_case", "key"),
    ("    ratio: 4\n    parts:\n      gate", "    parts:\n      gate", "E514", 21, "no row is ever pending", "ratio"),
    ("scores: folded", "scores: mixed", "E115", 8, "may not be 'mixed'", "folded"),
    ("rows: carry", "rows: carried", "E115", 21, "may not be 'carried'", "carry"),
    ("shape: [7]", "shape: []", "E117", 28, "is empty", "elements"),
    ("layer_count: 4\n", "", "E113", 1, "lacks the key 'layer_count'", "add"),
    ("granule: 32", "granul: 32", "E112", 4, "no key 'granul'", "closest: granule"),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "text", "fix"), MISTAKES)
def test_a_mistake_is_noted_where_it_stands(
    tmp_path: Path, old: str, new: str, code: str, line: int, text: str, fix: str
) -> None:
    assert old in GOOD
    profile, problems = read(tmp_path, GOOD.replace(old, new, 1))
    assert profile is None
    found = [problem for problem in problems if problem.code == code and text in problem.text]
    assert found, [(problem.code, problem.place.line, problem.text) for problem in problems]
    assert (found[0].place.line, fix in found[0].fix) == (line, True), (found[0].place, found[0].fix)


def test_all_mistakes_of_a_file_are_noted_at_once(tmp_path: Path) -> None:
    text = (
        GOOD.replace("[1, 3]", "[1, 9]")
        .replace("float32, meaning: key", "float3, meaning: key")
        .replace("weights: w,", "weights: w w,")
    )
    _, problems = read(tmp_path, text)
    assert [problem.code for problem in problems] == ["E513", "E502", "E504"]


@pytest.mark.parametrize("path", MODELS, ids=[path.stem for path in MODELS])
def test_shipped_profiles_are_clean(path: Path) -> None:
    problems = Problems()
    profile = read_profile(path, path.name, OBJECTS, problems)
    assert [problem.text for problem in problems] == []
    assert profile is not None
    assert profile.granule % profile.lcm == 0
    assert all(part.meaning for group in profile.groups for part in group.parts)


def test_the_example_of_the_readme_is_clean(tmp_path: Path) -> None:
    text = Path(str(files("kvfsm.spec").joinpath("README.md"))).read_text("utf-8")
    example = text[text.index("```yaml\nmodel: tiny_deepseek_v4") :].split("```")[1].removeprefix("yaml\n")
    path = tmp_path / "tiny_deepseek_v4.yaml"
    path.write_text(example, "utf-8")
    problems = Problems()
    assert read_profile(path, "README.md", OBJECTS, problems) is not None, problems.found


def test_reader_and_runtime_know_the_same_dtypes() -> None:
    assert ITEM_BYTES == RUNTIME_ITEM_BYTES
