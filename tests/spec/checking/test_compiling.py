"""Compiled code: kept by content in the user's cache, never beside the package, and safe when many build at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kvfsm.spec.checking
from kvfsm.spec.checking.engines.compiling import CompileError, cache_directory, compiler, load

ANSWER = "int answer(void) { return VALUE; }\n"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler")


def answer(value: int) -> dict[str, str]:
    return {"answer.c": f'#include "value.h"\n{ANSWER}', "value.h": f"#define VALUE {value}\n"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvfsm"


@needs_compiler
def test_a_library_is_compiled_once_and_by_content(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(answer(41)).answer() == 41
    assert load(answer(42)).answer() == 42
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr("subprocess.run", None)
    assert load(answer(41)).answer() == 41


@needs_compiler
def test_nothing_is_written_beside_the_package(cache: Path) -> None:
    package = Path(next(iter(kvfsm.spec.checking.__path__)))
    before = sorted(path.name for path in package.iterdir() if path.name != "__pycache__")
    load(answer(43))
    assert sorted(path.name for path in package.iterdir() if path.name != "__pycache__") == before
    assert cache_directory() == cache


@needs_compiler
def test_many_may_build_the_same_at_once(cache: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: load(answer(44)).answer(), range(6))) == [44] * 6
    assert [path.suffix for path in cache.iterdir()] == [".so"]


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load(answer(45)).answer() == 45
    assert (tmp_path / "file").read_text() == "in the way"


@needs_compiler
def test_what_the_compiler_says_is_told() -> None:
    with pytest.raises(CompileError, match="VALUE"):
        load({"answer.c": ANSWER})


def test_without_a_compiler_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiler() is None
    with pytest.raises(CompileError, match="install gcc or clang, or name one in CC"):
        load(answer(46))


@needs_compiler
@pytest.mark.parametrize("left", [0, 10, 5_000])
def test_a_damaged_library_is_built_anew(cache: Path, left: int) -> None:
    """Loading half a library would not raise, but kill the process."""
    load(answer(46 + left))
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # the mapped file itself may not shrink
    kept.write_bytes(whole[:left])
    assert load(answer(46 + left)).answer() == 46 + left
    assert kept.read_bytes() == whole


@needs_compiler
def test_no_room_to_compile_in_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    with pytest.raises(CompileError, match="No space left on device; fix: make room"):
        load(answer(47))
