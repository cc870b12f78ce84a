"""Model profiles -> ``runtime/generated/models.py``: their numbers; the runtime computes the offsets."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..spec.language.load import Spec
from ..spec.language.model import HitPolicy, Machine
from ..spec.language.profile import GroupSpec, PartSpec, ProfileSpec
from .layout import WIDTH, header

PATH = "runtime/generated/models.py"


def emit(spec: Spec) -> dict[str, str]:
    """The one file of all profiles, in the order of the spec; nothing when it has none."""
    return {PATH: models_module(spec.profiles, spec.machines)} if spec.profiles else {}


def models_module(profiles: Sequence[ProfileSpec], machines: Sequence[Machine]) -> str:
    """The text of the module. ``machines`` tells which objects a model lacks."""
    kinds = [machine.name for machine in machines if machine.hit is not HitPolicy.BY_KIND]
    pages = "PagePlan, " if any(group.page for profile in profiles for group in profile.groups) else ""
    head = (
        f'"""{header("spec/models/*.yaml")}\n'
        "\n"
        "Profiles of the models that are served; each is laid out and checked at first use.\n"
        '"""\n'
        "\n"
        "from __future__ import annotations\n"
        "\n"
        "from ..profile import Profile, Profiles\n"
        f"from ..profile_plan import GroupPlan, {pages}PartPlan, ProfilePlan\n"
    )
    table = "".join(f'        "{profile.name}": {profile.name},\n' for profile in profiles)
    tail = f"\n\nPROFILES = Profiles(\n    {{\n{table}    }}\n)\n"
    return head + "".join(_maker(profile, kinds) for profile in profiles) + tail


def _maker(profile: ProfileSpec, kinds: Sequence[str]) -> str:
    present = {group.object for group in profile.groups}
    absent = tuple(kind for kind in kinds if kind not in present)
    lines = [
        f"        name={_text(profile.name)},",
        f"        title={_text(profile.title)},",
        *_long("source", profile.source),
        f"        granule={profile.granule},",
        f"        identity={_text(profile.identity.text)},",
    ]
    optional = {
        "window": (profile.window, None),
        "window_policy": (profile.window_policy, None),
        "window_block": (profile.window_block, None),
        "retained": (profile.retained, 0),
        "scores": (profile.identity.scores, None),
        "alignment": (profile.alignment, 64),
        "offset_bits": (profile.offset_bits, 64),
        "absent": (absent, ()),
    }
    for key, (value, default) in optional.items():
        if value != default:
            lines.append(f"        {key}={_value(value)},")
    lines.append("        groups=(")
    for group in profile.groups:
        lines += _group(group)
    lines += ["        ),", "    ).profile()"]
    head = [
        "",
        "",
        f"def {profile.name}() -> Profile:",
        f'    """{_plain(profile.title)}."""',
        "    return ProfilePlan(",
    ]
    return "\n".join([*head, *lines, ""])


def _long(key: str, text: str) -> list[str]:
    """A keyword argument of a text that may need several lines."""
    if len(line := f"        {key}={_text(text)},") <= WIDTH:
        return [line]
    pieces = textwrap.wrap(text, WIDTH - 14, drop_whitespace=False, break_on_hyphens=False)
    return [f"        {key}=(", *(f"            {_text(piece)}" for piece in pieces), "        ),"]


def _group(group: GroupSpec) -> list[str]:
    lines = [
        "            GroupPlan(",
        f"                name={_text(group.name)},",
        f"                object={_text(group.object)},",
        f"                layers={_layers(group.layers)},",
    ]
    if group.ratio != 1:
        lines.append(f"                ratio={group.ratio},")
    if group.span != group.ratio * (group.page.rows if group.page else 1):
        lines.append(f"                span={group.span},")
    if group.page:
        lines.append(f"                page=PagePlan(rows={group.page.rows}, align={group.page.align}),")
    parts = [_part(part) for part in group.parts]
    if len(parts) == 1:
        lines.append(f"                parts=({parts[0]},),")
    else:
        lines += ["                parts=(", *(f"                    {part}," for part in parts), "                ),"]
    return [*lines, "            ),"]


def _part(part: PartSpec) -> str:
    fields = [_text(part.name), str(part.rows), _value(part.shape), _text(part.dtype), _text(part.meaning)]
    if part.role != "entries":
        fields.append(_text(part.role))
    return f"PartPlan({', '.join(fields)})"


def _layers(layers: tuple[int, ...]) -> str:
    """A tuple; where it is long, of ranges."""
    if len(layers) <= 4:
        return _value(layers)
    runs = _runs(layers)
    if len(runs) == 1:
        return f"tuple({runs[0].lstrip('*')})"
    if len(line := f"({', '.join(runs)})") <= WIDTH - 24:
        return line
    return "\n".join(["(", *(f"                    {run}," for run in runs), "                )"])


def _runs(layers: tuple[int, ...]) -> list[str]:
    """``*range(...)`` for each stretch of evenly spaced layers, single numbers for the rest."""
    runs: list[str] = []
    start = 0
    while start < len(layers):
        end = start + 1
        step = layers[end] - layers[start] if end < len(layers) else 1
        while end < len(layers) and layers[end] - layers[end - 1] == step:
            end += 1
        if end - start < 3 or step < 1:
            runs.append(str(layers[start]))
            start += 1
            continue
        bounds = [layers[start], layers[end - 1] + 1, step]
        shown = bounds[1:2] if bounds[::2] == [0, 1] else bounds[:2] if step == 1 else bounds
        runs.append(f"*range({', '.join(map(str, shown))})")
        start = end
    return runs


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        inside = ", ".join(_value(item) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return repr(value)


def _plain(title: str) -> str:
    """A title that can stand in a docstring."""
    return title.rstrip(".").replace("\\", "\\\\").replace('"', "'")


def _text(text: str) -> str:
    """A string literal in double quotes, as the formatter writes it."""
    literal = repr(text)
    if literal.startswith("'") and '"' not in text:
        return f'"{literal[1:-1]}"'.replace("\\'", "'")
    return literal
