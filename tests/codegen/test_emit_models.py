"""The generated profiles say what the spec says, in text that a formatter leaves alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvfsm.codegen.emit_models import PATH, emit
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.profile import Profile
from kvfsm.spec.language.load import Spec, load_spec

REPO = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load_spec().required()


def executed(text: str) -> dict[str, Profile]:
    """The profiles of a module's text, without a file for it."""
    names: dict[str, object] = {"__package__": "kvfsm.runtime.generated", "__name__": "kvfsm.runtime.generated.planned"}
    exec(compile(text, "planned.py", "exec"), names)
    return dict(names["PROFILES"])  # type: ignore[call-overload, no-any-return]


def test_the_committed_file_is_the_planned_one(spec: Spec) -> None:
    assert (REPO / PATH).read_text("utf-8") == emit(spec)[PATH], "run: kvfsm gen"


def test_every_profile_is_generated_in_order(spec: Spec) -> None:
    assert list(PROFILES) == [profile.name for profile in spec.profiles]


def test_generated_profiles_hold_the_numbers_of_the_spec(spec: Spec) -> None:
    for stated in spec.profiles:
        made = PROFILES[stated.name]
        assert (made.title, made.source, made.granule, made.identity, made.scores) == (
            stated.title,
            stated.source,
            stated.granule,
            stated.identity.text,
            stated.identity.scores,
        )
        assert (made.window, made.window_policy, made.window_block, made.retained) == (
            stated.window,
            stated.window_policy,
            stated.window_block,
            stated.retained,
        )
        assert made.lcm == stated.lcm
        assert made.offset_bits == stated.offset_bits
        assert [(group.name, group.object, group.layers, group.ratio, group.span) for group in made.groups] == [
            (group.name, group.object, group.layers, group.ratio, group.span) for group in stated.groups
        ]
        for group in stated.groups:
            layout = made.layouts[group.object]
            for layer in group.layers:
                for part in group.parts:
                    pages = [p for p in layout.parts if p.layer == layer and p.name.partition(".")[0] == part.name]
                    assert sum(page.rows for page in pages) == part.rows
                    assert {(p.row_bytes, p.row_shape, p.dtype, p.meaning, p.role) for p in pages} == {
                        (part.row_bytes, part.shape, part.dtype, part.meaning, part.role)
                    }


def test_present_and_absent_objects_make_up_all_that_have_slots(spec: Spec) -> None:
    kinds = {machine.name for machine in spec.machines} - {"ondisk_prefix"}
    for profile in PROFILES.values():
        assert set(profile.kinds) | set(profile.absent) == kinds
        assert not set(profile.kinds) & set(profile.absent)


def test_a_changed_profile_changes_its_own_text_only(spec: Spec) -> None:
    changed = tuple(replace(p, granule=64) if p.name == "tiny_llama" else p for p in spec.profiles)
    before = emit(spec)[PATH].splitlines()
    after = emit(replace(spec, profiles=changed))[PATH].splitlines()
    differing = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert differing == [("        granule=16,", "        granule=64,")]


def test_a_spec_without_profiles_generates_no_module(spec: Spec) -> None:
    assert emit(replace(spec, profiles=())) == {}


def test_awkward_texts_survive(spec: Spec) -> None:
    title = 'It\'s "quoted" \\ and more'
    text = emit(replace(spec, profiles=(replace(spec.profiles[0], title=title, source="x " * 100 + "'"),)))[PATH]
    made = executed(text)[spec.profiles[0].name]
    assert (made.title, made.source) == (title, "x " * 100 + "'")


@pytest.mark.parametrize(
    "layers", [(7,), (0, 2), tuple(range(60)), (0, 1, 2, 3, 5, 8, 9, 10, 11), (9, 3, 1, 0, 2), tuple(range(0, 60, 7))]
)
def test_layers_keep_their_order(spec: Spec, layers: tuple[int, ...]) -> None:
    llama = next(profile for profile in spec.profiles if profile.name == "llama")
    group = replace(llama.groups[0], layers=layers)
    text = emit(replace(spec, profiles=(replace(llama, layer_count=60, groups=(group,)),)))[PATH]
    assert executed(text)["llama"].groups[0].layers == layers


def test_the_formatter_would_change_nothing(spec: Spec) -> None:
    command = [sys.executable, "-m", "ruff", "format", "--check", "--diff", "--stdin-filename", PATH, "-"]
    done = subprocess.run(command, input=emit(spec)[PATH], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_importing_the_profiles_makes_none() -> None:
    code = "import kvfsm.runtime.generated.models as m; print(len(m.PROFILES), m.PROFILES._made)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO.parent, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(PROFILES)), "{}"]
