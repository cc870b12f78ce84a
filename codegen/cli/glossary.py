"""Words that stand in no spec: what the named properties demand, and what the manager answers.

Specs point at properties by name (``says: S3``); names are stable, so that tests, traces and people can use them.
"""

from __future__ import annotations

from collections.abc import Mapping

PROPERTIES: Mapping[str, str] = {
    "S1": "In each pool the slots of all states add up to the pool's size, and no slot is counted twice.",
    "S2": "A free slot has no lease, no open transfer, and no step that still touches it.",
    "S3": "While a lease or a transfer holds a slot, nobody evicts it, takes it anew or overwrites it.",
    "S4": "A lease is given only if generation and key are still those that the match saw.",
    "S5": "Who may write a slot is its one owner, and it is not matchable; sealed bytes never change.",
    "S6": "The targets of a load overlap neither sealed slots nor the targets of another load.",
    "S7": "Scrubbing a slot ends before a load into it begins.",
    "S8": "Each lease is released once, by its owner; another release is refused.",
    "S9": "Splitting or merging index entries changes no hold and no mark of what is stored.",
    "S10": "A hit's length is whole granules, short of the last token, and valid in every kind of object at once.",
    "S11": "Matching changes nothing, and asking again with the answer's length gives that length.",
    "S12": "Window rows are let go no earlier than the last query that reads them, and a boundary has all its rows.",
    "S13": "Entries, tail and window together cover the prefix: no token is missing, none is counted twice.",
    "S14": "A boundary can be resumed only with its carry, or after a replay that ends before first use.",
    "S15": "All lengths that are compared are in tokens.",
    "S16": "At use, entries and the keys that route to them are of one version, layer by layer.",
    "S17": "What can be found is complete: committed, every object of it there, its digest right.",
    "S18": "After a rollback or an abort every object is as it was at the committed length.",
    "S19": "Keys are equal exactly if tokens, adapter, salt, media and model are.",
    "S20": "Objects of another model, layout or meaning are in another namespace; what is called stored is durable.",
    "S21": "Marks of what is settled or stored never outlive the incarnation that they were made in.",
    "S22": "Layout, alignment and meaning of a slot are those that the kernel was built for.",
    "S23": "Page tables name owned slots or the guard slot, and nobody is given the guard slot.",
    "S24": "A captured graph runs only in the epoch of its pools.",
    "S25": "What is admitted fits; what can never fit is rejected and not put off.",
    "S26": "Each live request waits in exactly one queue.",
    "S27": "An end of a transfer acts once, on its own slot, owner and generation; a failure publishes nothing.",
    "S28": "All ranks agree on a length that each of them can restore.",
    "S29": "After a reset no tier answers with anything older, and late stores are dropped.",
    "T1": "Every open transfer ends.",
    "T2": "After an abort, what only the aborted request held becomes free.",
    "T3": "Whoever waits runs or is rejected at last.",
    "T4": "A finished load is used, whoever stands first in the queue.",
    "T5": "Loads are tried a bounded number of times, then computed.",
    "T6": "A quarantined slot becomes free; a lease is released.",
    "T7": "A slot gets a new owner only after all earlier steps and transfers on it have ended.",
    "T8": "What can be found was filled and published before, also across a crash.",
    "T9": "Resuming from a hit ends in the very state of a cold run, unless the answer said approximate.",
}
"""What each named property demands: S of safety, always; T of progress, at last."""

ANSWERS: Mapping[str, str] = {
    "HIT": "readable from memory now: acquire the answer",
    "MISS": "nothing can be reused: compute from the first token; `reason` and `detail` say what was short",
    "HIT_PENDING": "reusable once something is brought in from the store or expanded: give `answer.plan` to `load`",
    "RETRY": "an epoch ended between the look at memory and the look at the store: match again, at once",
    "STALE": "what was matched is gone or was replaced: `check` says so and `acquire` refuses it; match again",
    "REJECT": "asked for in a way that this manager can never serve: another model's keys, layout or alignment",
    "FULL": "of admission (`Deferred`): a limit of `Limits` is reached; not now, ask again when somebody has ended",
    "DEFER": "of admission (`Deferred`): not now, and nothing was taken; ask again when somebody has ended",
    "REBUILD": "of the indexer: its keys are missing, and the entries can be read; `answer.rebuild` says of which "
    "tokens they are to be computed again, with `rebuild_begin`",
    "EVICTED": "of one object: it was there and had to make room; known only where `eviction:` leaves tombstones",
    "PENDING": "of one object: not all of it is readable in memory; the plan brings it in",
    "PACKED": "of one object: in memory in its cold form; expanding it makes it readable",
    "REPLAY": "of one object: not kept; its rows are computed again from tokens, so the reuse is approximate",
    "ABSENT": "of one object: this model keeps no such object, or there is no store",
    "UNASKED": "of the store: nobody had to ask it",
}
"""Verdicts of a match, of the whole and of one object, as ``Answer`` and the demo show them; and of admission."""

TERMS: Mapping[str, str] = {
    "granule": "so many tokens, by the model's profile: the unit of keys, of `reserve`, and of what can be reused",
    "boundary": "the end of a granule: where a prefix can be resumed if every kind of object has its state for it",
    "generation": "counts the owners of a slot: a lease names the one that it was given for, so a new owner is noticed",
    "epoch": "counts the resets: what was published before one is found no more",
    "salt": "bytes that say whose a prompt is: prompts with different salts share nothing",
    "fill": "slots to write granules into, of `reserve`: `publish` lets others find them, `abandon` gives them up",
    "lease": "the right to read some slots until `release`: nobody evicts or overwrites them before. Past its "
    "`deadline=`, a time of the manager's `now`, its holder can't read through it, and `revoke` takes it back",
    "plan": "what a HIT_PENDING answer says must be brought in: give it to `load`, or in steps to `load_begin`",
    "ticket": "a load that is under way: what it writes into, and who waits for it",
    "poison": "what a broken invariant does to a manager: nothing is known of its slots any more, so every call but "
    "`audit`, `leaks` and the trace raises `Poisoned` and says what broke; make a new manager",
    "row": "the place of a live request: its slots, its committed tokens, its drafts",
    "reservation": "all that a request which was admitted needs for its first step; `enter` makes it a row",
}
"""Words of the runtime that its README and its errors use."""
