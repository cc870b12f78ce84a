"""What errors tell, where it is more than what they were given."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kvfsm.runtime
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import KvfsmError, Refused
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.granule import granule_report


def test_the_layers_that_a_refusal_may_name_are_those_that_the_runtime_names() -> None:
    place = {"Refused": 1, "Rejected": 1, "must": 2}  # which argument is the layer
    named = {
        ast.unparse(node.args[place[called]])
        for path in Path(kvfsm.runtime.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func).rpartition(".")[2]) in place
    }
    listed = {repr(name) for name in re.findall(r'"([a-z ]+)"', Refused.__doc__ or "")}
    assert named == {*listed, "layer", "why.layer"}  # and what hands on a layer that was named


def test_what_a_profile_can_not_be_is_an_error_of_kvfsm_too() -> None:
    with pytest.raises(KvfsmError, match="fix: "):
        granule_report({})


def test_a_word_that_machines_and_reasons_share_is_told_as_the_reason() -> None:
    given = [Refusal.STALE, Refusal.GAP, Refusal.LAYOUT, Refusal.EPOCH, Refusal.PINNED, Reason.LEASE]
    told = [Refused(word, "pool", "one slot refuses").refusal for word in given]
    assert told == [Reason.STALE, Reason.GAP, Reason.LAYOUT, Reason.EPOCH, Refusal.PINNED, Reason.LEASE]
