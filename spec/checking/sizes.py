"""How many slots and copies decide for any greater number of them, and which claims are not of that kind.

A bound can be raised beyond what was tried if more slots of it are like those that there are. So nothing may be done
with the number of a slot but to look into that slot, to ask whether two are the same, and to compare it with numbers
that are written down: the slots up to the greatest of those are *distinguished*, and there are as many others as a step
and a claim can speak of. A step that does more (``id + 1``, ``first < second``, a number that is handed to an event)
keeps its bound as it is. A claim that does is not proved where its bound is raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..language.bounds import interval
from ..language.expressions import Compare, Count, Expr, Member, Name, Number, Remote
from ..language.protocol import Program, Protocol, Step, range_of
from ..language.trees import parts_of, rewritten, walked
from .dead import dead_steps
from .grounding import ground
from .symmetry import SlotClass, slots_alike

COPIES = 2  # of an actor: one that moves, and one that a claim speaks of
Reread = Callable[[Mapping[str, int]], Protocol | None]  # the same protocol with other bounds; None: not with these


@dataclass(frozen=True, slots=True)
class Growth:
    """What there is more of when a bound is raised, and the size of it that decides."""

    bound: str
    actors: frozenset[str]
    size: int
    alike: tuple[SlotClass, ...]  # among more slots than decide
    refused: Mapping[str, str]  # claims that cannot be proved of any number, and why


def growths_of(protocol: Protocol, reread: Reread, left_out: frozenset[str] = frozenset()) -> list[Growth]:
    """The bounds that can be raised at will; ``left_out`` are claims that are not proved, whatever they say."""
    raised = [
        _Raised(protocol, more, bound.name)
        for bound in protocol.bounds
        for more in [reread({bound.name: bound.value + 1})]
        if more is not None
    ]
    elsewhere = {each.bound: _others(raised, each) for each in raised}
    regular = [each for each in raised if each.is_regular and each.numbers_in_steps(elsewhere[each.bound]) is not None]
    free = frozenset(actor for each in regular if not each.pools for actor in each.actors)
    found = []
    for each in regular:
        refused, literals = each.claims(elsewhere[each.bound], left_out)
        size: int | None = 1
        alike: tuple[SlotClass, ...] = ()
        if each.pools:
            apart = left_out | frozenset(refused)
            needed = each.slots_named(free, frozenset(actor for other in raised for actor in other.actors))
            size, alike = _slots(each, needed, literals, apart, reread) or (None, ())
        if size is not None:
            size = max(size, COPIES if each.actors else 1)
            if reread({each.bound: size}) is not None:
                found.append(Growth(each.bound, each.actors, size, alike, refused))
    while found and reread(sizes_of(found)[-1]) is None:  # each can be read, and all of them at once cannot
        found.pop()
    return found


def sizes_of(growths: list[Growth]) -> list[dict[str, int]]:
    """All sizes that have to be tried, the one that decides for all greater ones last."""
    names = [growth.bound for growth in growths]
    ranges = [range(1, growth.size + 1) for growth in growths]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*ranges)]


def deciding_size(protocol: Protocol, reread: Reread) -> dict[str, int]:
    """The bounds that decide for any greater: enough copies and slots for one step and one claim.

    Of each actor two copies: one that moves and one that a claim speaks of. Of the slots as many as these copies can
    name, before a step and after it, and a claim. A local that is left out names slot 0 for all that it matters. A
    bound that the file cannot be read with is none that can be raised, and is not among them.
    """
    return sizes_of(growths_of(protocol, reread))[-1]


def _slots(
    raised: _Raised, needed: int, literals: frozenset[int], apart: frozenset[str], reread: Reread
) -> tuple[int, tuple[SlotClass, ...]] | None:
    """How many slots decide, and which are alike; None: none do, since slots are told apart.

    Those that are all alike must be as many as a step and a claim can speak of (``needed``). Others have numbers that
    steps or claims mention. Claims in ``apart`` are not asked.
    """
    size = needed + max(literals, default=-1) + 1
    for _ in range(2):
        large = reread({raised.bound: size + 1})  # one more than is needed, so that each has another that it is like
        if large is None:
            return None
        system = ground(large, for_proof=True)
        asked = tuple(claim for claim in system.claims if claim.name not in apart)
        alike = slots_alike(large, replace(system, claims=asked))
        pools = raised.pools
        least = min(max((len(part.numbers) for part in alike if pool in part.instances), default=0) for pool in pools)
        if least > needed:
            return size, alike
        size += needed + 1 - least
    return None


class _ToldApart(Exception):
    """An expression does more with the number of a slot than can be said of any number of slots."""


@dataclass(frozen=True)
class _Raised:
    """A protocol beside the same with one bound greater by 1."""

    old: Protocol
    new: Protocol
    bound: str

    @cached_property
    def actors(self) -> frozenset[str]:
        return frozenset(old.name for old, new in self._programs if old.count != new.count)

    @cached_property
    def pools(self) -> frozenset[str]:
        pairs = zip(self.old.instances, self.new.instances, strict=True)
        return frozenset(old.name for old, new in pairs if old.slots != new.slots)

    @cached_property
    def locals(self) -> frozenset[tuple[str, str]]:
        """(actor, local) of each that takes one value more: the numbers of slots."""
        return frozenset(
            (program.name, old.name)
            for program, more in self._programs
            for old, new in zip(program.locals, more.locals, strict=True)
            if old.high != new.high
        )

    @property
    def _programs(self) -> Iterator[tuple[Program, Program]]:
        return zip(self.old.programs, self.new.programs, strict=True)

    @property
    def is_regular(self) -> bool:
        """Whether there is more of slots or copies, and nothing else: no wider field, no number that nobody has."""
        machines = zip(self.old.instances, self.new.instances, strict=True)
        if any(old.machine != new.machine for old, new in machines):
            return False
        return bool(self.pools) or (bool(self.actors) and not self.locals)

    def numbers_in_steps(self, elsewhere: frozenset[tuple[str, str]]) -> frozenset[int] | None:
        """The slots that steps name by number; None where they do more with numbers."""
        found: set[int] = set()
        try:
            for old, new in self._programs:
                uses = _Uses(self, elsewhere, old.name, {})
                for step, more in zip(old.steps, new.steps, strict=True):
                    if [_shape(expr) for _, expr in _values(step)] != [_shape(expr) for _, expr in _values(more)]:
                        return None
                    found.update(uses.of_step(step, more))
        except _ToldApart:
            return None
        return frozenset(found)

    def claims(
        self, elsewhere: frozenset[tuple[str, str]], left_out: frozenset[str]
    ) -> tuple[dict[str, str], frozenset[int]]:
        """Claims that speak of numbers in another way, and why; the slots that steps and the other claims name."""
        literals = set(self.numbers_in_steps(elsewhere) or ())
        refused = {}
        for item, more in zip(self.old.properties, self.new.properties, strict=True):
            if item.kind == "sometimes" or item.name in left_out:
                continue
            try:
                if _shape(item.that) != _shape(more.that):
                    raise _ToldApart
                literals.update(_Uses(self, elsewhere, None, _pools_of(item.that)).of(item.that))
            except _ToldApart:
                refused[item.name] = (
                    f"it does more with a number that '{self.bound}' bounds than to name a slot, "
                    "to ask whether it is another's, or to compare it with a number"
                )
        return refused, frozenset(literals)

    def slots_named(self, free: frozenset[str], growing: frozenset[str]) -> int:
        """How many slots a step and a claim can speak of, other than by number.

        Of an actor of which any number of copies can be left out (``free``) two count, of any other all that there are;
        of those that grow with another bound (``growing``) two at least.
        """
        system = ground(self.new, for_proof=True)  # where a local can name more than one slot, it is no constant
        named = picked = 0
        for program in self.old.programs:
            grown = {local for actor, local in self.locals if actor == program.name}
            cells = {cell.field: cell for cell in system.cells if cell.owner == program.name and cell.field in grown}
            copies = program.count
            if program.name in free | self.actors:
                copies = COPIES
            elif program.name in growing:
                copies = max(COPIES, copies)
            named += copies * len(cells)
            # What is chosen needs a slot beside the one that the local names still, unless that is of no account.
            dead = {local: dead_steps(system, cell) for local, cell in cells.items()}
            for step in program.steps:
                chosen = [pick.local for pick in step.choose if pick.local in grown]
                picked = max(picked, sum(step.code not in dead.get(local, ()) for local in chosen))
        actors = frozenset(program.name for program in self.old.programs)
        exprs = [item.that for item in self.old.properties if item.kind != "sometimes"]
        return named + picked + max([1, *(len(range_of(expr, actors).indexes) for expr in exprs)])


def _others(raised: list[_Raised], one: _Raised) -> frozenset[tuple[str, str]]:
    """The locals that other bounds size."""
    return frozenset(local for each in raised if each is not one for local in each.locals)


@dataclass(frozen=True, slots=True)
class _Uses:
    """What an expression does with the numbers of slots that a bound sizes."""

    raised: _Raised
    elsewhere: frozenset[tuple[str, str]]
    actor: str | None  # in a step, whose
    indexes: Mapping[str, frozenset[str]]  # in a claim, free index -> the pools that it is an index of

    def of_step(self, step: Step, more: Step) -> Iterator[int]:
        """The slots that a step names by number, save those that it assigns; ``_ToldApart``."""
        for pick, wider in zip(step.choose, more.choose, strict=True):
            if (self.actor, pick.local) in self.raised.locals and pick.high == wider.high:
                yield pick.high
        for fire in step.fire:
            yield from self._slot(fire.instance, fire.slot)
        for target, expr in _values(step):
            if (self.actor, target) in self.raised.locals:
                if not self._is_slot(expr) and not isinstance(expr, Number):
                    raise _ToldApart  # a literal is compared with all commands, by ``slots_alike``
            else:
                yield from self.of(expr)

    def of(self, expr: Expr) -> Iterator[int]:
        """The slots that an expression tells from others by their number; ``_ToldApart``."""
        match expr:
            case Compare(op, left, right) if self._is_slot(left) or self._is_slot(right):
                yield from self._compared(left, right, op in ("==", "!="))
            case Member(item, options):
                for option in options:
                    if self._is_slot(item) or self._is_slot(option):
                        yield from self._compared(item, option, True)
                    else:
                        yield from (*self.of(item), *self.of(option))
            case Remote(owner=owner, index=index) if index is not None:
                yield from self._slot(owner, index)
            case _:
                if self._is_slot(expr):
                    raise _ToldApart
                for part in parts_of(expr):
                    yield from self.of(part)

    def _slot(self, pool: str, index: Expr) -> Iterator[int]:
        if self._is_slot(index):
            if pool not in self.raised.pools:
                raise _ToldApart
        elif pool in self.raised.pools:
            yield self._most(index)
        yield from () if self._is_slot(index) else self.of(index)

    def _compared(self, left: Expr, right: Expr, alike: bool) -> Iterator[int]:
        """Two slots, or a slot with a number: then all up to the greatest that it can be are told from the rest."""
        if self._is_slot(left) and self._is_slot(right):
            if not alike:
                raise _ToldApart
            return
        number = right if self._is_slot(left) else left
        yield self._most(number)
        yield from self.of(number)

    def _most(self, number: Expr) -> int:
        """The greatest value of a number that has nothing to do with any bound."""
        if isinstance(number, Remote) and number.index is not None:
            return number.high
        for part in walked(number):
            match part:
                case Name(kind="index") | Count():
                    raise _ToldApart
                case Name(name=name, kind="local") if (self.actor, name) in self.elsewhere or self._is_slot(part):
                    raise _ToldApart
                case Remote(owner=owner, index=None, field=name):
                    if (owner, name) in self.elsewhere or self._is_slot(part):
                        raise _ToldApart
        return interval(number)[1]

    def _is_slot(self, expr: Expr) -> bool:
        match expr:
            case Name(name=name, kind="local"):
                return (self.actor, name) in self.raised.locals
            case Remote(owner=owner, index=None, field=field):
                return (owner, field) in self.raised.locals
            case Name(name=name, kind="index"):
                pools = self.indexes[name]
                if pools & self.raised.pools and not pools <= self.raised.pools:
                    raise _ToldApart
                return bool(pools & self.raised.pools)
        return False


def _pools_of(claim: Expr) -> dict[str, frozenset[str]]:
    """For each free index of a claim, the pools that it is an index of."""
    found: dict[str, frozenset[str]] = {}
    for part in walked(claim):
        match part:
            case Remote(owner=owner, index=Name(name=name, kind="index")):
                found[name] = found.get(name, frozenset()) | {owner}
            case Name(name=name, kind="index"):
                found.setdefault(name, frozenset())
    return found


def _values(step: Step) -> Iterator[tuple[str | None, Expr]]:
    """Every value that a step reads, with the local that it is assigned to, if it is."""
    if step.when is not None:
        yield None, step.when
    for fire in step.fire:
        yield from ((None, value) for _, value in fire.args)
    yield from ((item.field, item.value) for item in step.do)
    for branch in (step.refused, step.otherwise):
        if branch is not None:
            yield from ((item.field, item.value) for item in branch.do)


def _shape(expr: Expr) -> Expr:
    """An expression without what is derived from the bounds; numbers such as ``max(slot)`` stay."""

    def rule(part: Expr) -> Expr:
        return replace(part, high=0) if isinstance(part, Name | Remote | Count) else part

    return rewritten(expr, rule)
