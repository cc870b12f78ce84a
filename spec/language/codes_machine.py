"""Problem codes E3xx: what a machine must keep."""

from __future__ import annotations

from collections.abc import Mapping

from .problems import CodeInfo

MACHINE_CODES: Mapping[str, CodeInfo] = {
    "E301": CodeInfo(
        "the word is wider than 64 bits",
        "One slot's life is one 64-bit word, so that an event is one atomic step on every device.",
        "word: {state: 4, pins: 30, generation: 40}    # wrong: 74 bits",
    ),
    "E302": CodeInfo(
        "the state field",
        "'state' is the first field, in the low bits, and wide enough for all states.",
        "word: {state: 1}    # wrong for three states",
    ),
    "E303": CodeInfo(
        "the initial state",
        "Exactly one state is initial, and it is the first: a word of zeros is a fresh slot.",
        "states:\n  filling: {...}\n  free: {initial: true, ...}    # wrong: not the first",
    ),
    "E304": CodeInfo(
        "a state that is never reached",
        "No chain of cases leads there from the initial state; a case or a state is missing.",
        "states: {..., packed: {...}}    # wrong when no case has to: packed",
    ),
    "E305": CodeInfo(
        "a state that never leads back to free memory",
        "Slots that enter it are lost to the pool for good.",
        "failed: {...}    # wrong without an event such as discard",
    ),
    "E306": CodeInfo(
        "a missing case",
        "A state that an event lists says what happens to every word and every argument: its last case "
        "has no guard. Otherwise the event would be refused as illegal by accident.",
        "- {from: resident, when: pins == 0, to: free}    # wrong alone\n"
        "- {from: resident, refuse: pinned}               # right behind it",
    ),
    "E307": CodeInfo(
        "a dead case",
        "No word and no arguments reach the case: the cases above it take them all, or its guard is "
        "never true. This is decided over all words and arguments, not only over those that come up in a "
        "run.",
        "- {from: resident, refuse: busy}\n"
        "- {from: resident, when: pins > 0, refuse: pinned}    # wrong: never reached",
    ),
    "E308": CodeInfo(
        "an assignment may leave its field",
        "The value must fit the field's bits whenever the case fits. This is decided over all words and "
        "arguments, not only over those that come up in a run. A count that wraps round frees a slot "
        "under its readers.",
        "- {from: resident, do: {pins: pins + 1}}                              # wrong alone\n"
        "- {from: resident, when: pins == max(pins), refuse: too_many_readers}    # right above it",
    ),
    "E309": CodeInfo(
        "a case that refuses and applies",
        "A refused event leaves the word as it was.",
        "- {from: free, refuse: busy, to: filling}    # wrong",
    ),
    "E311": CodeInfo(
        "a word that nothing uses",
        "A word of the vocabulary that no event uses is a typing mistake or a leftover.",
        "actors: {..., janitor: ...}    # wrong when no event has by: janitor",
    ),
    "E312": CodeInfo(
        "marks that contradict each other",
        "An exclusive state has one owner: it is neither readable nor evictable. A free state is none of the three.",
        "filling: {exclusive: true, readable: true, ...}    # wrong",
    ),
    "E313": CodeInfo(
        "an eviction rule that does not fit the machine",
        "The candidates are the states marked evictable. 'first: lowest' and 'highest' order numbers, "
        "'true' and 'false' conditions, and each key tells candidates apart. Kinds that a hit asks for all pages go "
        "leaf_first, and so does a store, which keeps their chains; trailing kinds go flat. Only the first have a "
        "'cascade:', of other kinds with slots in memory, and a store has neither that nor a budget.",
        "order: [{by: last_use, first: true}]      # wrong\norder: [{by: last_use, first: lowest}]    # right",
    ),
    "E314": CodeInfo(
        "an impossible eviction",
        "Whatever the rule picks, its event must free: in every candidate state the rule's guard picks "
        "some slot, and the event refuses none that it picks. Otherwise a full pool stays full.",
        "eviction: {event: evict, when: pins >= 0, ...}    # wrong when evict refuses pinned slots",
    ),
    "E315": CodeInfo(
        "a property that says nothing",
        "It holds for every word, or for none, whatever the events do.",
        "always: {positive: {that: pins >= 0}}    # wrong: always true",
    ),
    "E316": CodeInfo(
        "a property that a fresh slot breaks",
        "A pool starts with words of zeros.",
        "always: {taken: {that: generation > 0}}    # wrong",
    ),
    "E317": CodeInfo(
        "a slot is taken without a greater generation (S4)",
        "A handle of the slot's last owner would fit the new owner's bytes. At its greatest value a "
        "generation never wraps: the event refuses, and the slot retires.",
        "- {from: free, to: filling}                                       # wrong\n"
        "- {from: free, to: filling, do: {generation: generation + 1}}    # right",
    ),
    "E318": CodeInfo(
        "an old handle is not refused (S4)",
        "An event that is told a generation refuses every other one as stale, in every state, free included.",
        "- {from: resident, when: expected != generation, refuse: stale}    # wrong: not in the other states\n"
        "- {from: any, when: expected != generation, refuse: stale}         # right",
    ),
    "E319": CodeInfo(
        "a mutant that the reader would find",
        "A mutant tests the properties, so it must be a machine that could have been written by mistake: "
        "its cases are complete, none is dead, and its assignments fit.",
        "mutants: {wraps: {event: pin, drop_case: 3}}    # wrong when case 3 keeps the count from wrapping",
    ),
    "E320": CodeInfo(
        "a file that is named otherwise",
        "A machine stands in a file of its own name.",
        "machine: page    # wrong in block.yaml",
    ),
    "E321": CodeInfo(
        "the first refusal is not 'illegal'",
        "Code 1 is what a state answers that does not take the event at all.",
        "refusals: {stale: ..., illegal: ...}    # wrong",
    ),
    "E322": CodeInfo(
        "free slots are not said to be free of pins (S2)",
        "A machine that counts pins claims, under 'always:', that there are none where a state counts as "
        "free; the checker then shows it.",
        "always:\n  free_means_free: {says: S2, that: state == free implies pins == 0}    # right",
    ),
    "E323": CodeInfo(
        "an eviction rule that rests on what nobody keeps",
        "A meta field is what the runtime writes there. In pools it keeps, where a machine declares them: last_use, "
        "the clock of the last release or publication; uses, the leases taken since it was published; priority and "
        "expires, which a publisher gives; tenant, a number for the salt of the keys, which a budget for each tenant "
        "needs. A store keeps last_use and bytes. Any other field stays 0, so an order by it would be none.",
        "meta:  {hits: u32}                              # wrong: nobody counts into it\n"
        "order: [{by: hits, first: lowest}]\n"
        "meta:  {uses: u32}                              # right\n"
        "order: [{by: uses, first: lowest}]",
    ),
}
