"""Random acts on a store, and what the store has promised by them; known to a writer and to whoever checks it later.

A writer does the acts of a seed one after another and tells of each that returned. Whoever counts what it told knows
which objects must be there, and which the act under way may or may not have changed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId, Verdict

NAMESPACE = Namespace("model", {"compressed_kv": "layout a", "swa_window": "layout b"}, "raw")
SEGMENT_BYTES = 6 * 8192  # small, so that a few acts use several files
OBJECTS = 16
READ_BYTES = 12_000  # more than any payload


def an_id(number: int) -> ObjectId:
    return ObjectId("compressed_kv" if number % 2 else "swa_window", hashlib.sha256(b"%d" % number).digest())


NUMBERS = {(an_id(number).kind, an_id(number).key): number for number in range(OBJECTS)}


def payload(number: int, lossy: bool) -> bytes:
    seed = hashlib.sha256(b"payload %d %d" % (number, lossy)).digest()
    return seed * (40 + 37 * (number % 9))  # 1280 to 10752 bytes


@dataclass(frozen=True, slots=True)
class Act:
    """One call: "put", "delete", "reset", "collect", or "reopen", which closes the store and opens it anew."""

    name: str
    numbers: tuple[int, ...] = ()
    lossy: bool = False

    def perform(self, store: LocalStore, reopened: Callable[[], LocalStore]) -> LocalStore:
        """Returns the store to go on with."""
        ids = [an_id(number) for number in self.numbers]
        if self.name == "put":
            bodies = [payload(number, self.lossy) for number in self.numbers]
            store.put_many([Item(i, body, {"lossy": self.lossy}) for i, body in zip(ids, bodies, strict=True)])
        elif self.name == "delete":
            store.delete(ids)
        elif self.name == "reset":
            store.reset()
        elif self.name == "collect":
            store.collect(verify=True)
        else:
            store.close()
            return reopened()
        return store


def acts(seed: int) -> Iterator[Act]:
    """Without an end; the same for the same seed."""
    chance = random.Random(seed)
    while True:
        name = chance.choices(["put", "batch", "delete", "reset", "collect", "reopen"], [6, 7, 3, 1, 2, 1])[0]
        some = tuple(chance.sample(range(OBJECTS), chance.randint(2, 6)))
        lossy = chance.random() < 0.2
        if name in ("put", "batch"):
            yield Act("put", some[:1] if name == "put" else some, lossy)
        else:
            yield Act(name, some[:3] if name == "delete" else ())


@dataclass(slots=True)
class Promises:
    """What must be there, and what else may be while an act is under way."""

    must: dict[int, bool] = field(default_factory=dict)  # number -> lossy
    may: dict[int, set[bool | None]] = field(default_factory=dict)  # number -> what is allowed; None: nothing
    together: tuple[int, ...] = ()  # these are all there or all gone
    epoch_at_least: int = 0

    def begin(self, act: Act) -> None:
        """The act is under way."""
        touched = act.numbers if act.name in ("put", "delete") else tuple(self.must) if act.name == "reset" else ()
        if act.name == "put":
            self.may = {n: {self.must.get(n), self.must.get(n, True) and act.lossy} for n in touched}
            self.together = tuple(n for n in touched if n not in self.must)
        else:
            self.may = {n: {self.must[n], None} for n in touched if n in self.must}
            self.together = tuple(self.may)

    def end(self, act: Act) -> None:
        """The act returned."""
        if act.name == "put":
            self.must |= {number: self.must.get(number, True) and act.lossy for number in act.numbers}
        for number in self.may if act.name in ("delete", "reset") else ():
            del self.must[number]
        self.epoch_at_least += act.name == "reset"
        self.may, self.together = {}, ()

    def broken(self, served: dict[int, bool]) -> list[str]:
        """What is wrong with these objects, number -> lossy, being the ones that are found."""
        found = []
        for number in range(OBJECTS):
            allowed = self.may.get(number, {self.must.get(number)})
            if served.get(number) not in allowed:
                found.append(f"object {number} is {served.get(number)}, allowed is {allowed}")
        if len({number in served for number in self.together}) > 1:
            found.append(f"{self.together} are not all there or all gone")
        return found

    def settle(self, served: dict[int, bool], epoch: int) -> None:
        """After a crash: what was found then is what must be there from now on."""
        self.must, self.may, self.together, self.epoch_at_least = dict(served), {}, (), epoch


def served(store: LocalStore) -> tuple[dict[int, bool], list[str]]:
    """Objects that a store gives, number -> lossy; and whatever is wrong with what it says or gives."""
    found, wrong = {}, []
    present = store.contains([an_id(number) for number in range(OBJECTS)])
    for number, there in enumerate(present.tolist()):
        into = bytearray(READ_BYTES)
        answer = store.get(an_id(number), into)
        lossy = bool(answer.meta.get("lossy", False))
        if (answer.verdict is Verdict.OK) != there:
            wrong.append(f"object {number}: contains says {there}, get says {answer.verdict.name}")
        if answer.verdict is Verdict.OK:
            found[number] = lossy
            if into[: answer.length] != payload(number, lossy):
                wrong.append(f"object {number}: wrong bytes were served")
        elif answer.verdict not in (Verdict.MISS, Verdict.EPOCH):
            wrong.append(f"object {number}: {answer.verdict.name}")
        elif any(into):
            wrong.append(f"object {number}: {answer.verdict.name} wrote into the buffer")
    return found, wrong
