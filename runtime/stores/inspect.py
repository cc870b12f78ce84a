"""A look into a store's directory from outside: reads only, takes no lock, changes nothing.

While a writer has the store open, what it is writing just now may look unfinished; that is not a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .census import Counted, census, current_epoch
from .files import TEMPORARY, Files
from .format import Header, Stamp
from .segments import Mark, Scan, Segment, is_whole, newest_group, payload_is_sound, scan, segment_number
from .state import State, read_state
from .store import Namespace, Verdict

OnProgress = Callable[[int, int], None]  # objects done, objects in all


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not served. ``header`` is the object's, where it can be read."""

    path: Path
    offset: int
    verdict: Verdict
    text: str
    header: Header | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What one namespace's directory holds. Sizes in bytes."""

    path: Path
    namespace: Namespace | None  # None: its description can't be read, and then the rest is empty
    epoch: int
    objects: tuple[Header, ...]  # those that can be served
    faults: tuple[Fault, ...]
    expired: int  # objects of ended epochs
    leftover_bytes: int  # of an unfinished write and of temporary files; the next opening removes them
    file_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of the objects that can be served, headers and padding included."""
        return sum(header.stride for header in self.objects)


def namespaces(files: Files, directory: Path) -> list[Path]:
    """The namespaces' directories under a store's directory. Raises OSError when there is no such directory."""
    found = [directory / name for name in files.list_directory(directory)]
    return [path for path in found if len(path.name) == 64 and set(path.name) <= set("0123456789abcdef")]


def read_namespace(path: Path, text: bytes | None) -> Namespace | None:
    """The namespace that ``namespace.json`` describes; None unless it is that of this directory."""
    try:
        namespace = Namespace.from_json(json.loads(text or b""))
    except (ValueError, KeyError, TypeError):
        return None
    return namespace if namespace.digest == path.name else None


def inspect(files: Files, path: Path, namespace: Namespace, verify: bool, on_progress: OnProgress) -> Report:
    """Look through one namespace's directory.

    Args:
        files: the file layer.
        path: the namespace's directory.
        namespace: as `read_namespace` gave it.
        verify: read every object and check its bytes, not the headers alone.
        on_progress: called after each object.

    Raises:
        OSError: a file can't be read.

    """
    stamp = Stamp.of(namespace)
    with ExitStack() as opened:
        state, scans, temporary = _of_one_moment(files, path, opened)
        mark = state.mark if state is not None else Mark()
        file_bytes = sum(scanned.segment.size for scanned in scans)
        faults = [] if state is not None else [_no_state(path)]
        faults += [_shortened(scanned, mark) for scanned in scans if _is_short(scanned, mark)]
        leftovers = _set_unfinished_aside(files, scans, stamp.namespace, mark)
        epoch = current_epoch(scans, stamp, state)
        counted = census(files, scans, stamp, epoch)
        faults += [
            Fault(scanned.segment.path, hole.start, hole.verdict, f"{hole.stop - hole.start} bytes hold no object")
            for scanned in scans
            for hole in scanned.holes
        ]
        objects: list[Header] = []
        for done, one in enumerate(counted, 1):
            verdict = one.verdict
            if verdict is Verdict.OK and verify and not _is_sound(files, one):
                verdict = Verdict.INTEGRITY
            if verdict is Verdict.OK:
                objects.append(one.header)
            elif verdict is not Verdict.EPOCH:
                faults.append(_fault(one, verdict))
            on_progress(done, len(counted))
        expired = sum(one.verdict is Verdict.EPOCH for one in counted)
        leftover_bytes = leftovers + temporary
        return Report(path, namespace, epoch, tuple(objects), tuple(faults), expired, leftover_bytes, file_bytes)


def _is_sound(files: Files, one: Counted) -> bool:
    try:
        return payload_is_sound(files, one.segment, one.header)
    except OSError:
        return False  # a sector that can't be read is a changed one


def _of_one_moment(files: Files, path: Path, opened: ExitStack) -> tuple[State | None, list[Scan], int]:
    """The state, what lies in each segment, and bytes of temporary files; ``opened`` closes the segments.

    A writer may go on meanwhile: when he takes a file away, or replaces the state, all is looked at anew.
    """
    while True:
        state, names = read_state(files, path), files.list_directory(path)
        with ExitStack() as handles:
            try:
                scans, temporary = _scan_all(files, path, names, handles)
            except FileNotFoundError:
                if files.list_directory(path) == names:
                    raise
                continue
            if read_state(files, path) == state:
                opened.push(handles.pop_all())
                return state, scans, temporary


def _scan_all(files: Files, path: Path, names: Sequence[str], handles: ExitStack) -> tuple[list[Scan], int]:
    segments, temporary = [], 0
    for name in names:
        number = segment_number(name)
        if number is None and not name.endswith(TEMPORARY):
            continue
        handle = files.open(path / name, write=False)
        handles.callback(files.close, handle)
        size = files.size(handle)
        if number is None:
            temporary += size
        else:
            segments.append(Segment(number, path / name, handle, size, name_durable=True))
    return [scan(files, segment) for segment in segments], temporary


def _set_unfinished_aside(files: Files, scans: list[Scan], namespace: bytes, mark: Mark) -> int:
    """Take out of ``scans`` what the next opening would cut off. Returns how many bytes that is."""
    group, last = newest_group(scans, namespace)
    if last is not None and group > mark.group and not is_whole(files, last, namespace, group):
        last.headers = [h for h in last.headers if h.stamp_namespace != namespace or h.group < group]
        group -= 1
    active = last.segment.number if last is not None else mark.segment
    leftovers = 0
    for scanned in scans:
        end = scanned.end(max(group, mark.group), namespace)
        if scanned.segment.number == mark.segment:
            end = max(end, mark.size)
        foreign = any(header.stamp_namespace != namespace for header in scanned.headers)
        if scanned.segment.number >= active and not foreign:
            leftovers += max(0, scanned.segment.size - end)
            scanned.holes = [hole for hole in scanned.holes if hole.start < end]
    return leftovers


def _fault(one: Counted, verdict: Verdict) -> Fault:
    header = one.header
    text = f"{header.kind} {header.key.hex()[:16]}: {verdict.reason}"
    return Fault(one.segment.path, header.offset, verdict, text, header)


def _no_state(path: Path) -> Fault:
    text = "missing or damaged; the next opening begins a new epoch, and nothing older is served"
    return Fault(path / "state.json", 0, Verdict.INTEGRITY, text)


def _is_short(scanned: Scan, mark: Mark) -> bool:
    return scanned.segment.number == mark.segment and scanned.segment.size < mark.size


def _shortened(scanned: Scan, mark: Mark) -> Fault:
    segment = scanned.segment
    text = f"the file ends here; it had {mark.size} bytes when the store was closed"
    return Fault(segment.path, segment.size, Verdict.TRUNCATED, text)
