"""What errors tell, where it is more than what they were given."""

from __future__ import annotations

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import Refusal


def test_a_word_that_machines_and_reasons_share_is_told_as_the_reason() -> None:
    given = [Refusal.STALE, Refusal.GAP, Refusal.LAYOUT, Refusal.EPOCH, Refusal.PINNED, Reason.LEASE]
    told = [Refused(word, "pool", "one slot refuses").refusal for word in given]
    assert told == [Reason.STALE, Reason.GAP, Reason.LAYOUT, Reason.EPOCH, Refusal.PINNED, Reason.LEASE]
