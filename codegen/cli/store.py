"""Look into the directory of a local store, check it, or clean it.

  kvfsm store ls DIR      every object that can be served: kind, key, boundary, exact or lossy, bytes
  kvfsm store fsck DIR    read everything and verify every checksum; changes nothing
  kvfsm store gc DIR      remove expired and corrupt objects and what crashes left; needs the store closed
  ... gc DIR --budget N   evict, too, by `eviction:` of ondisk_prefix, until a namespace has N bytes at most
       --spec my_spec     by that of your own spec
  ... --json              {"ok", "objects", "bytes", "corrupt", "namespaces": [...]}

Exit code: 0 all is well, 1 something corrupt was found or the spec has problems, 2 no store there, or (gc) somebody has
it open.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...spec.language.problems import render_all
from .lint import loaded_spec
from .numbers import size
from .store_kinds import kinds_of

if TYPE_CHECKING:
    from ...runtime.stores.inspect import Report
    from ...runtime.stores.store import Namespace
    from ...runtime.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("what", choices=("ls", "fsck", "gc"), help="list, check, or collect garbage")
    parser.add_argument("directory", type=Path, metavar="DIR", help="the store's directory")
    parser.add_argument("--budget", type=size, metavar="BYTES", help="gc: evict until so much is left, such as 80e9")
    parser.add_argument("--spec", type=Path, metavar="DIR", help="gc --budget: of which spec (default: the shipped)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Do it, report, and say how it went: 0 well, 1 something corrupt, 2 no store, or it is in use."""
    from ...runtime.stores.files import RealFiles
    from ...runtime.stores.inspect import namespaces
    from ...runtime.stores.store import StoreError, StoreLocked

    if args.budget is not None and args.what != "gc":
        print(f"kvfsm store: {args.what} changes nothing; give --budget to gc", file=sys.stderr)
        return 2
    if args.spec is not None and args.budget is None:
        print("kvfsm store: --spec says what goes first; give it to gc, with --budget", file=sys.stderr)
        return 2
    kinds = {} if args.spec is None else _kinds(args.spec)
    if isinstance(kinds, int):
        return kinds
    try:
        paths = namespaces(RealFiles(), args.directory)
        if not paths:
            print(f"kvfsm store: '{args.directory}' holds no store; {_where(args.directory)}", file=sys.stderr)
            return 2
        collected = _collect(paths, args.budget, kinds) if args.what == "gc" else []
        reports = [_look(path, verify=args.what == "fsck") for path in paths]
    except StoreLocked as problem:
        print(f"kvfsm store: {problem}", file=sys.stderr)
        return 2
    except (StoreError, OSError) as problem:
        if not args.directory.is_dir():
            print(f"kvfsm store: there is no folder '{args.directory}'; {_where(args.directory)}", file=sys.stderr)
            return 2
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        where = (problem.filename if isinstance(problem, OSError) else None) or args.directory
        print(f"kvfsm store: '{where}' can't be read as a store: {why}", file=sys.stderr)
        return 2
    corrupt = sum(len(report.faults) for report in reports)
    if args.json:
        print(json.dumps(_as_json(reports, collected)))
    else:
        _print(args, reports, collected)
    return 1 if corrupt else 0


def _kinds(spec: Path) -> Mapping[str, type[Table]] | int:
    """Table classes of a spec; the exit code, with a line on stderr, where it has none that count here."""
    loaded = loaded_spec(spec)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        return 1
    from ...runtime.generated import KINDS

    kinds = kinds_of(loaded.spec)
    if "ondisk_prefix" not in kinds:
        print(f"kvfsm store: '{spec}' has no ondisk_prefix, which says what goes first", file=sys.stderr)
        return 2
    try:
        kinds["ondisk_prefix"].check_stands_for(KINDS["ondisk_prefix"])
    except ValueError as problem:
        (machine,) = (one for one in loaded.spec.machines if one.name == "ondisk_prefix")
        print(f"{machine.path}: {problem}", file=sys.stderr)
        return 1
    return kinds


def _where(directory: Path) -> str:
    """Which directory was probably meant."""
    if (directory / "namespace.json").is_file():
        return f"it is one namespace of a store: give the folder above it, {directory.resolve().parent}"
    return "give the directory that LocalStore was opened with (`kvfsm demo --keep DIR` makes one)"


def _look(path: Path, verify: bool) -> Report:
    from ...runtime.stores.files import RealFiles, read_file
    from ...runtime.stores.inspect import Fault, Report, inspect, read_namespace
    from ...runtime.stores.store import Verdict

    files = RealFiles()
    described = path / "namespace.json"
    namespace = read_namespace(path, read_file(files, described))
    if namespace is None:
        text = "missing, damaged, or of another directory; a store that opens this namespace does not need it"
        return Report(path, None, 0, (), (Fault(described, 0, Verdict.IDENTITY, text),), 0, 0, 0)
    if not _is_ours(namespace):
        what = f"format {namespace.format}, kinds {', '.join(namespace.layouts)}"
        text = f"{what}: not all of that is known to this version, which leaves what is there as it is"
        return Report(path, namespace, 0, (), (Fault(described, 0, Verdict.FORMAT, text),), 0, 0, 0)
    return inspect(files, path, namespace, verify, _progress(path, "checked" if verify else "seen"))


def _is_ours(namespace: Namespace | None) -> bool:
    """Whether this version stores such a namespace, as its description says."""
    from ...runtime.generated.ondisk_prefix import OndiskPrefixKind
    from ...runtime.stores.format import FORMAT_VERSION

    kinds = {kind.name.lower() for kind in OndiskPrefixKind}
    return namespace is not None and namespace.format == FORMAT_VERSION and kinds.issuperset(namespace.layouts)


def _collect(paths: Sequence[Path], budget: int | None, kinds: Mapping[str, type[Table]]) -> list[dict[str, Any]]:
    """Collect garbage in each namespace. Raises StoreError when one is in use or can't be written."""
    from ...runtime.stores.files import RealFiles, read_file
    from ...runtime.stores.inspect import read_namespace
    from ...runtime.stores.local import LocalStore

    collected = []
    for path in paths:
        namespace = read_namespace(path, read_file(RealFiles(), path / "namespace.json"))
        if namespace is None or not _is_ours(namespace):
            continue  # the report says so
        print(f"collecting {path.name[:12]}", file=sys.stderr)
        with LocalStore(path.parent, namespace, kinds=kinds) as store:
            done = store.collect(verify=True, most_bytes=budget)
        freed = {"namespace": path.name, "expired": done.expired, "corrupt": done.corrupt, "bytes": done.bytes}
        freed["evicted"] = done.evicted
        collected.append(freed)
    return collected


def _progress(path: Path, verb: str) -> Any:
    """A callback that keeps one line on stderr up to date; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        return lambda done, total: None

    def show(done: int, total: int) -> None:
        if done % 64 == 0 or done == total:
            end = "\n" if done == total else ""
            print(f"\r{path.name[:12]}: {verb} {done} of {total} objects", end=end, file=sys.stderr, flush=True)

    return show


def _as_json(reports: Sequence[Report], collected: Sequence[dict[str, Any]]) -> dict[str, Any]:
    corrupt = sum(len(report.faults) for report in reports)
    return {
        "ok": corrupt == 0,
        "objects": sum(len(report.objects) for report in reports),
        "bytes": sum(report.bytes for report in reports),
        "corrupt": corrupt,
        "namespaces": [_report_as_json(report) for report in reports],
        "collected": list(collected),
    }


def _report_as_json(report: Report) -> dict[str, Any]:
    return {
        "digest": report.path.name,
        "namespace": report.namespace.as_json() if report.namespace is not None else None,
        "epoch": report.epoch,
        "bytes": report.bytes,
        "file_bytes": report.file_bytes,
        "expired": report.expired,
        "leftover_bytes": report.leftover_bytes,
        "objects": [
            {
                "kind": header.kind,
                "key": header.key.hex(),
                "boundary": header.boundary,
                "lossy": header.lossy,
                "epoch": header.epoch,
                "bytes": header.payload_bytes,
            }
            for header in report.objects
        ],
        "faults": [
            {"file": str(fault.path), "offset": fault.offset, "verdict": fault.verdict.name, "text": fault.text}
            for fault in report.faults
        ],
    }


def _print(args: argparse.Namespace, reports: Sequence[Report], collected: Sequence[dict[str, Any]]) -> None:
    for done in collected:
        removed = f"{done['expired']} expired and {done['corrupt']} corrupt objects"
        removed += f", evicted {done['evicted']}" if done["evicted"] else ""
        print(f"{done['namespace'][:12]}: removed {removed}, freed {done['bytes']} bytes")
    for report in reports:
        model = report.namespace.model_identity if report.namespace is not None else "unknown"
        print(f"namespace {report.path.name[:12]}  model {model}  epoch {report.epoch}")
        if args.what == "ls":
            for header in report.objects:
                boundary = "-" if header.boundary is None else str(header.boundary)
                exact = "lossy" if header.lossy else "exact"
                key = header.key.hex()[:16]
                print(f"  {header.kind:<18} {key}  boundary {boundary:>6}  {exact}  {header.payload_bytes:>10} bytes")
        print(f"  {len(report.objects)} objects, {report.bytes} of {report.file_bytes} bytes in files", end="")
        print(f"; {report.expired} expired, {report.leftover_bytes} bytes left over, {len(report.faults)} corrupt")
        for fault in report.faults:
            print(f"  {fault.path}:{fault.offset}: {fault.verdict.name} {fault.text}")
    if any(report.faults for report in reports if _is_ours(report.namespace)):
        kept = "keeps the rest" if any(report.objects for report in reports) else "nothing is left then"
        expired = ", and what has expired," if any(report.expired for report in reports) else ""
        print(f"fix: none of this is ever served; `kvfsm store gc {args.directory}` removes it{expired} and {kept}")
    elif args.what != "gc" and any(report.expired or report.leftover_bytes for report in reports):
        print(f"fix: nothing is wrong; `kvfsm store gc {args.directory}` frees the bytes of what has expired")
