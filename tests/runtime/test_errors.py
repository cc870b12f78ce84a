"""What errors tell, where it is more than what they were given."""

from __future__ import annotations

import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import KvfsmError, Refused
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.granule import granule_report


def test_what_a_profile_can_not_be_is_an_error_of_kvfsm_too() -> None:
    with pytest.raises(KvfsmError, match="fix: "):
        granule_report({})


def test_a_word_that_machines_and_reasons_share_is_told_as_the_reason() -> None:
    given = [Refusal.STALE, Refusal.GAP, Refusal.LAYOUT, Refusal.EPOCH, Refusal.PINNED, Reason.LEASE]
    told = [Refused(word, "pool", "one slot refuses").refusal for word in given]
    assert told == [Reason.STALE, Reason.GAP, Reason.LAYOUT, Reason.EPOCH, Refusal.PINNED, Reason.LEASE]
