"""Model profiles: which layers of a model keep which objects, in rows of which shape and meaning.

One file a model. Reading notes every mistake with its place; what a profile says about bytes (offsets, strides,
digests) is computed by the runtime from the same numbers. All lengths are in raw tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .names import name_of
from .problems import Place, Problems, closest
from .source import (
    Entry,
    List,
    Mapping,
    Node,
    Scalar,
    choice_of,
    entries_of,
    items_of,
    keys_of,
    number_of,
    read_yaml,
    text_of,
)

ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1, "float8_e8m0": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip
ROLES = ("entries", "window", "carry", "pending")
PAGED = ("entries", "window")  # rows that lie in pages where a group has them
POLICIES = ("checkpoint", "blocks")
SCORES = ("raw", "folded")
SCORE_OF_MEANING = {"gate_raw": "raw", "gate_bias_folded": "folded"}
_TOKENS_MAX = 1 << 24  # a boundary has 24 bits in the state words
_BYTES_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One tensor of each layer of a group: ``rows`` rows a slot, of ``shape`` elements; ``role`` is of ``ROLES``."""

    name: str
    rows: int
    role: str
    shape: tuple[int, ...]
    dtype: str
    meaning: str
    at: Place

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class PageSpec:
    """Pages that entries or window rows of a layer share: ``rows`` rows of each part, padded to ``align`` bytes."""

    rows: int
    align: int
    at: Place


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers that keep one object alike; ``span`` tokens make a physical block."""

    name: str
    object: str
    layers: tuple[int, ...]
    ratio: int
    span: int
    page: PageSpec | None
    parts: tuple[PartSpec, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class IdentitySpec:
    """What stored bytes depend on beside their layout; ``scores`` tells whether score rows hold the positional bias."""

    weights: str
    positions: str
    dtype: str
    scores: str | None

    @property
    def text(self) -> str:
        """One line that differs whenever a field does."""
        return f"weights={self.weights};positions={self.positions};dtype={self.dtype};scores={self.scores or 'none'}"


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """One model file."""

    name: str
    title: str
    source: str
    granule: int
    layer_count: int
    window: int | None
    window_policy: str | None
    window_block: int | None
    retained: int
    alignment: int
    offset_bits: int
    identity: IdentitySpec
    groups: tuple[GroupSpec, ...]
    path: str
    at: Place

    @property
    def lcm(self) -> int:
        """The least common multiple of all spans."""
        return math.lcm(*(group.span for group in self.groups))


def read_profile(path: Path, shown: str, objects: Sequence[str], problems: Problems) -> ProfileSpec | None:
    """Read one model file.

    Args:
        path: the file.
        shown: how problems name it.
        objects: names of the machines that a group may keep.
        problems: where mistakes are noted.

    Returns:
        The profile, or None when the file holds a mistake.
    """
    before = len(problems)
    root = read_yaml(path, shown, problems)
    if root is None:
        return None
    profile = _Profile(shown, objects, problems).read(root, path.stem)
    return profile if len(problems) == before else None


class _Profile:
    """Reads one file; what was read first (granule, window, layer count) is what groups are held against."""

    def __init__(self, shown: str, objects: Sequence[str], problems: Problems) -> None:
        self.shown = shown
        self.objects = objects
        self.problems = problems

    def read(self, root: Node, stem: str) -> ProfileSpec | None:
        problems = self.problems
        required = ("model", "title", "source", "granule", "layer_count", "identity", "groups")
        optional = ("window", "window_policy", "window_block", "retained", "drafts", "alignment", "offset_bits")
        keys = keys_of(root, "a model profile", problems, required, optional)
        name = self._name(keys.get("model"), stem)
        title = text_of(keys.get("title"), "the title", problems)
        source = text_of(keys.get("source"), "the source", problems)
        self.granule = number_of(keys.get("granule"), "the granule", problems, 1, _TOKENS_MAX)
        self.layer_count = number_of(keys.get("layer_count"), "the layer count", problems, 1, 1024)
        self._window(keys)
        alignment = self._number(keys, "alignment", "the alignment", 64, 1, 1 << 20)
        if alignment & (alignment - 1):
            at = keys["alignment"].at
            problems.add(
                "E506", at, f"the alignment {alignment} is not a power of two", f"use {_next_power(alignment)}"
            )
        offset_bits = self._number(keys, "offset_bits", "the offset width", 64, 8, 64)
        identity = self._identity(keys.get("identity"))
        self.scores = identity.scores if identity else None
        groups = [self._group(entry) for entry in entries_of(keys.get("groups"), "groups", problems)]
        whole = [group for group in groups if group is not None]
        self._one_group_a_layer(whole)
        if isinstance(keys.get("groups"), Mapping) and not groups:
            problems.add(
                "E117", keys["groups"].at, "a model profile needs at least one group", "name what a layer keeps"
            )
        if len(whole) == len(groups) and groups:
            self._granule_fits(keys.get("granule"), whole)
            known = self.policy != "blocks" or self.window_block is not None  # else said by _window
            roles = {part.role for group in whole for part in group.parts}
            if "drafts" in keys and not roles & {"window", "pending"}:
                fix = "drop it: drafts have room in the pools"
                problems.add("E507", keys["drafts"].at, "'drafts' without a window or pending rows", fix)
            if self.window and known and not any(part.role == "window" for group in whole for part in group.parts):
                fix = "add a group with 'rows: window', or drop the window"
                problems.add("E507", keys["window"].at, "no group holds the window's rows", fix)
        if name is None or title is None or source is None or identity is None or self.granule is None:
            return None
        return ProfileSpec(
            name=name,
            title=title,
            source=source,
            granule=self.granule,
            layer_count=self.layer_count or 1,
            window=self.window,
            window_policy=self.policy,
            window_block=self.window_block,
            retained=self.retained,
            alignment=alignment,
            offset_bits=offset_bits,
            identity=identity,
            groups=tuple(whole),
            path=self.shown,
            at=root.at,
        )

    def _number(self, keys: dict[str, Node], key: str, what: str, default: int, low: int, high: int) -> int:
        """An optional number; ``default`` when it isn't given, or is bad, which is noted."""
        value = number_of(keys.get(key), what, self.problems, low, high)
        return default if value is None else value

    def _name(self, node: Node | None, stem: str) -> str | None:
        if not isinstance(node, Scalar):
            text_of(node, "the model's name", self.problems)
            return None
        name = name_of(node, "a model", self.problems)
        if name is not None and name != stem:
            self.problems.add("E512", node.at, f"model '{name}' stands in {stem}.yaml", f"write 'model: {stem}'")
        return name

    def _window(self, keys: dict[str, Node]) -> None:
        """Read the window, its policy and its block, and hold them against each other and the granule."""
        problems = self.problems
        self.window = number_of(keys.get("window"), "the window", problems, 2, _TOKENS_MAX)
        self.policy = choice_of(keys.get("window_policy"), "the window policy", problems, POLICIES)
        self.window_block = number_of(keys.get("window_block"), "the window block", problems, 1, _TOKENS_MAX)
        self.retained = self._number(keys, "retained", "the rows retained", 0, 0, _TOKENS_MAX)
        self.drafts = self._number(keys, "drafts", "the drafts", 0, 0, _TOKENS_MAX)
        if self.window and "retained" not in keys:
            self.retained = self.drafts
        elif self.window and self.retained < self.drafts:
            found = f"{self.retained} rows retained, and {self.drafts} drafts would overwrite what is read"
            problems.add("E507", keys["retained"].at, found, f"write 'retained: {self.drafts}', or drop 'retained:'")
        for key in ("window_policy", "window_block", "retained"):
            if key in keys and "window" not in keys:
                problems.add("E507", keys[key].at, f"'{key}' without a window", f"add 'window:', or drop '{key}:'")
        if "window" in keys and "window_policy" not in keys:
            fix = "add 'window_policy: checkpoint' (rows for one boundary) or 'window_policy: blocks'"
            problems.add("E507", keys["window"].at, "the window has no policy", fix)
        if self.policy == "blocks" and "window_block" not in keys:
            fix = "add 'window_block:', a divisor of the granule"
            problems.add("E508", keys["window_policy"].at, "policy 'blocks' does not say how long a block is", fix)
        if self.policy == "checkpoint" and "window_block" in keys:
            what = "policy 'checkpoint' keeps the rows of one boundary and has no blocks"
            problems.add(
                "E508", keys["window_block"].at, what, "drop 'window_block:', or write 'window_policy: blocks'"
            )
        if self.window_block and self.granule and self.granule % self.window_block:
            self._indivisible(
                keys["window_block"].at, f"a window block of {self.window_block} tokens", self.window_block
            )

    def _identity(self, node: Node | None) -> IdentitySpec | None:
        keys = keys_of(node, "the identity", self.problems, ("weights", "positions", "dtype"), ("scores",))
        words = {}
        for key in ("weights", "positions", "dtype"):
            word = text_of(keys.get(key), f"the identity's {key}", self.problems)
            if word is not None and not re.fullmatch(r"[^\s;=]+", word):
                fix = f"write one word, such as {re.sub(r'[^A-Za-z0-9_.-]+', '-', word).strip('-') or 'none'}"
                self.problems.add("E513", keys[key].at, f"the identity's {key} may not hold blanks, ';' or '='", fix)
            words[key] = word or ""
        scores = choice_of(keys.get("scores"), "the identity's scores", self.problems, SCORES)
        if not all(words.values()):
            return None
        return IdentitySpec(words["weights"], words["positions"], words["dtype"], scores)

    def _group(self, entry: Entry) -> GroupSpec | None:
        problems = self.problems
        before = len(problems)
        name = name_of(entry.key, "a group", problems)
        what = f"group '{entry.key.text}'"
        keys = keys_of(entry.value, what, problems, ("object", "layers", "parts"), ("ratio", "span", "page"))
        kind = text_of(keys.get("object"), f"the object of {what}", problems)
        if kind is not None and kind not in self.objects:
            problems.add(
                "E509",
                keys["object"].at,
                f"{what} keeps '{kind}', which is not an object of layers",
                closest(kind, self.objects),
            )
        layers = self._layers(keys.get("layers"), what)
        ratio = self._number(keys, "ratio", f"the ratio of {what}", 1, 1, _TOKENS_MAX)
        if self.granule and self.granule % ratio:
            self._indivisible(keys["ratio"].at, f"{what}: a ratio of {ratio}", ratio)
        parts = tuple(self._part(part, what, ratio) for part in entries_of(keys.get("parts"), "parts", problems))
        if isinstance(keys.get("parts"), Mapping) and not parts:
            problems.add("E117", keys["parts"].at, f"{what} has no parts", "name the rows that a layer keeps")
        whole = tuple(part for part in parts if part is not None)
        page = self._page(keys.get("page"), what, whole) if len(whole) == len(parts) else None
        natural = ratio * (page.rows if page else 1)
        span = self._number(keys, "span", f"the span of {what}", natural, 1, _TOKENS_MAX)
        if span % natural:
            rows = f"pages of {page.rows} rows at ratio {ratio}" if page else f"rows of {ratio} tokens"
            fix = f"use {-(-span // natural) * natural}"
            problems.add("E510", keys["span"].at, f"{what}: a span of {span} tokens is no whole number of {rows}", fix)
        if len(problems) > before or name is None or kind is None or layers is None:
            return None
        return GroupSpec(name, kind, layers, ratio, span, page, whole, entry.key.at)

    def _layers(self, node: Node | None, what: str) -> tuple[int, ...] | None:
        """``all``, a list, or ``{from: a, below: b, every: n, but: layers}``: [a, b) in steps of n, less some."""
        problems, count = self.problems, self.layer_count
        if node is None or count is None:
            return None
        if isinstance(node, Scalar) and node.text == "all":
            return tuple(range(count))
        if isinstance(node, Mapping):
            keys = keys_of(node, f"the layers of {what}", problems, ("from", "below"), ("every", "but"))
            first = number_of(keys.get("from"), "the first layer", problems, 0, 1023)
            below = number_of(keys.get("below"), "the end of the layers", problems, 0, 1024)
            every = self._number(keys, "every", "the step between layers", 1, 1, 1024)
            if first is None or below is None:
                return None
            if below > count:
                problems.add(
                    "E502",
                    keys["below"].at,
                    f"{what} ends below layer {below}, but the model has {count} layers",
                    f"use at most {count}",
                )
                return None
            if first >= below:
                problems.add(
                    "E502",
                    node.at,
                    f"{what} has no layers: [{first}, {below}) is empty",
                    "use a first layer below the end",
                )
                return None
            dropped = self._layers(keys["but"], what) if "but" in keys else ()
            if dropped is None:
                return None
            left = tuple(layer for layer in range(first, below, every) if layer not in dropped)
            if not left:
                problems.add("E502", keys["but"].at, f"{what} has no layers: all are left out", "leave some in")
            return left or None
        layers: list[int] = []
        for item in items_of(node, f"the layers of {what}", problems):
            layer = number_of(item, "a layer", problems, 0, 1023)
            if layer is None:
                return None
            if layer >= count:
                fix = f"use 0 to {count - 1}, or raise 'layer_count:'"
                problems.add("E502", item.at, f"{what} names layer {layer}, but the model has {count} layers", fix)
            elif layer in layers:
                problems.add("E503", item.at, f"{what} names layer {layer} twice", "name it once")
            layers.append(layer)
        if isinstance(node, List) and not node.items:
            problems.add("E117", node.at, f"{what} has no layers", "name at least one, or leave the group out")
        return tuple(layers)

    def _part(self, entry: Entry, group: str, ratio: int) -> PartSpec | None:
        problems = self.problems
        before = len(problems)
        name = name_of(entry.key, "a part", problems)
        what = f"part '{entry.key.text}' of {group}"
        keys = keys_of(entry.value, what, problems, ("rows", "shape", "dtype", "meaning"), ("row_bytes",))
        role, rows = self._rows(keys.get("rows"), what, ratio)
        shape = [
            number_of(item, f"the shape of {what}", problems, 1, 1 << 24)
            for item in items_of(keys.get("shape"), f"the shape of {what}", problems)
        ]
        if isinstance(keys.get("shape"), List) and not shape:
            problems.add("E117", keys["shape"].at, f"the shape of {what} is empty", "give the elements of one row")
        dtype = text_of(keys.get("dtype"), f"the dtype of {what}", problems)
        if dtype is not None and dtype not in ITEM_BYTES:
            problems.add(
                "E504", keys["dtype"].at, f"{what} has the unknown dtype '{dtype}'", closest(dtype, ITEM_BYTES)
            )
        meaning = self._meaning(keys.get("meaning"), what, role)
        if len(problems) > before or name is None or role is None or rows is None or dtype is None or meaning is None:
            return None
        part = PartSpec(name, rows, role, tuple(size for size in shape if size), dtype, meaning, entry.key.at)
        stated = number_of(keys.get("row_bytes"), f"the row bytes of {what}", problems, 1, _BYTES_MAX)
        if stated is not None and stated != part.row_bytes:
            found = f"{what} states {stated} bytes a row, but {list(part.shape)} of {dtype} takes {part.row_bytes}"
            problems.add("E505", keys["row_bytes"].at, found, f"write {part.row_bytes}, or leave 'row_bytes:' out")
            return None
        return part

    def _rows(self, node: Node | None, what: str, ratio: int) -> tuple[str | None, int | None]:
        """Role and number of the rows of one slot; a plain number is a fixed carry, such as a recurrent state."""
        if isinstance(node, Scalar) and not node.quoted and re.fullmatch(r"-?[0-9]+", node.text):
            return "carry", number_of(node, f"the rows of {what}", self.problems, 1, _TOKENS_MAX)
        role = choice_of(node, f"the rows of {what}", self.problems, ROLES)
        if node is None or role is None:
            return None, None
        match role:
            case "entries":
                return role, self.granule // ratio if self.granule else None
            case "carry":
                return role, ratio
            case "pending":
                if ratio == 1:
                    fix = "drop the part, or give the group its ratio"
                    self.problems.add("E514", node.at, f"{what}: at ratio 1 no row is ever pending", fix)
                return role, ratio - 1 + self.drafts
            case "window":
                if self.window is None:
                    self.problems.add(
                        "E507", node.at, f"{what} holds window rows, but the profile has no window", "add 'window:'"
                    )
                    return role, None
                if self.policy == "blocks":
                    return role, self.window_block
                return role, self.window - 1 + self.retained
        return None, None

    def _meaning(self, node: Node | None, what: str, role: str | None) -> str | None:
        """A free word; the two words for scores must agree with the identity in rows that outlive a chunk."""
        meaning = text_of(node, f"the meaning of {what}", self.problems)
        if node is None or meaning is None:
            return None
        if not re.fullmatch(r"[a-z][a-z0-9_]*", meaning):
            self.problems.add(
                "E513",
                node.at,
                f"the meaning of {what} must be one lower_snake_case word",
                "write one such as key, value or gate_raw",
            )
        stated = SCORE_OF_MEANING.get(meaning)
        if role == "carry" and stated is not None and stated != self.scores:
            found = f"{what} holds {stated} scores, but the identity says '{self.scores or 'none'}'"
            self.problems.add("E511", node.at, found, f"write 'scores: {stated}' in the identity, or mend the meaning")
        return meaning

    def _page(self, node: Node | None, what: str, parts: Sequence[PartSpec]) -> PageSpec | None:
        if node is None:
            return None
        keys = keys_of(node, f"the page of {what}", self.problems, ("rows",), ("align", "bytes"))
        rows = number_of(keys.get("rows"), f"the page rows of {what}", self.problems, 1, _TOKENS_MAX)
        align = self._number(keys, "align", f"the page alignment of {what}", 1, 1, 1 << 20)
        stated = number_of(keys.get("bytes"), f"the page bytes of {what}", self.problems, 1, _BYTES_MAX)
        if rows is None:
            return None
        for part in parts:
            if part.role in PAGED and part.rows % rows:
                found = f"part '{part.name}' of {what} has {part.rows} rows, no whole number of pages of {rows}"
                self.problems.add("E510", keys["rows"].at, found, f"use a divisor of {part.rows}")
        if stated is not None:
            payload = rows * sum(part.row_bytes for part in parts if part.role in PAGED)
            padded = -(-payload // align) * align
            if stated != padded:
                found = (
                    f"the page of {what} states {stated} bytes; {payload} bytes of rows padded to {align} make {padded}"
                )
                self.problems.add("E506", keys["bytes"].at, found, f"write {padded}")
        return PageSpec(rows, align, node.at)

    def _one_group_a_layer(self, groups: Sequence[GroupSpec]) -> None:
        owner: dict[tuple[str, int], str] = {}
        for group in groups:
            for layer in group.layers:
                other = owner.setdefault((group.object, layer), group.name)
                if other != group.name:
                    found = f"layer {layer} keeps {group.object} in group '{other}' already"
                    self.problems.add(
                        "E503", group.at, found, f"leave layer {layer} out of '{other}' or '{group.name}'"
                    )
                    break

    def _granule_fits(self, node: Node | None, groups: Sequence[GroupSpec]) -> None:
        spans = {group.name: group.span for group in groups}
        lcm = math.lcm(*spans.values())
        if node is not None and self.granule and self.granule % lcm:
            listed = ", ".join(f"{name} {span}" for name, span in spans.items())
            found = f"granule {self.granule} is not a multiple of {lcm}, the LCM of the spans ({listed})"
            self.problems.add("E501", node.at, found, f"use {-(-self.granule // lcm) * lcm}")

    def _indivisible(self, at: Place, what: str, length: int) -> None:
        assert self.granule is not None
        fix = f"use a divisor of {self.granule}, or a granule such as {math.lcm(self.granule, length)}"
        self.problems.add("E501", at, f"{what} does not divide the granule {self.granule}", fix)


def _next_power(value: int) -> int:
    return 1 << (value - 1).bit_length()
