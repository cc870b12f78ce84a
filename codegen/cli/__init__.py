"""The `kvfsm` command: one module a verb, imported when it is used.

A verb's module has ``add_arguments(parser)`` and ``run(args) -> exit code``; its docstring is the text that
`kvfsm VERB --help` shows. Exit codes: 0 all is well, 1 a fault was found in what was given, 2 used wrongly, 130 stopped
(Ctrl-C).
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

WELL, FAULT, MISUSE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb and what it does, for the overview; ``built`` is whether this version has it."""

    name: str
    does: str
    built: bool = True

    def module(self) -> ModuleType:
        """The module that carries it out."""
        return import_module(f"{__package__}.{self.name}")


VERBS = (
    Verb("init", "copy a starting spec into a folder of your own"),
    Verb("lint", "check specs, and say how to mend what is wrong"),
    Verb("gen", "write all generated files, or compare them with --check"),
    Verb("draw", "draw the diagrams as SVG"),
    Verb("explain", "explain any word of a spec, a problem code, or an answer of the manager"),
    Verb("demo", "restore prefixes on four tiny models and compare with cold runs"),
    Verb("store", "list, check or clean a local store"),
    Verb("check", "explore every interleaving of a protocol"),
    Verb("explore", "write a page to step through a protocol"),
    Verb("export", "write a protocol for another checker"),
    Verb("validate", "hold a recorded event trace against the model"),
    Verb("replay", "run a request trace through the manager"),
    Verb("top", "watch a live process", built=False),
    Verb("inspect", "look into a live process", built=False),
    Verb("doctor", "say what works on this machine", built=False),
)

DESCRIPTION = """\
KV-cache consistency from one YAML spec: state classes, CUDA headers, diagrams, tests, and a model checker.

Edit a spec and regenerate:   kvfsm lint && kvfsm gen
Start a spec of your own:     kvfsm init my_spec && kvfsm gen --spec my_spec --out my_package
Look at a machine:            kvfsm explain swa_window.pin; kvfsm draw
Try every interleaving:       kvfsm check evict; kvfsm explore evict
See the whole chain run:      kvfsm demo
"""

EPILOG = """\
exit codes: 0 all is well; 1 a fault was found in what was given; 2 used wrongly; 130 stopped.
`kvfsm VERB --help` says more about one verb.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    named = next((verb for verb in VERBS if arguments[:1] == [verb.name]), None)
    if named is not None and not named.built:
        print(f"kvfsm {named.name} is not built yet: it will {named.does}", file=sys.stderr)
        return MISUSE
    if named is None and arguments and not arguments[0].startswith("-"):
        near = difflib.get_close_matches(arguments[0], [verb.name for verb in VERBS], n=3, cutoff=0.5)
        hint = f"closest: {', '.join(near)}; " if near else ""
        print(f"kvfsm: there is no verb '{arguments[0]}'; {hint}`kvfsm --help` lists all", file=sys.stderr)
        return MISUSE
    try:
        return _run(named, arguments)
    except KeyboardInterrupt:
        print(f"kvfsm{f' {named.name}' if named else ''}: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `kvfsm explain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WELL


def _run(named: Verb | None, arguments: Sequence[str]) -> int:
    """Import the verb, read its options, and carry it out."""
    parser = _parser(named)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as done:  # argparse has printed its help or what was wrong
        return done.code if isinstance(done.code, int) else MISUSE
    if args.version:
        print(f"kvfsm {version('kvfsm')}")
        return WELL
    if args.verb is None:
        parser.print_help()
        return MISUSE
    return int(args.run(args))


def _parser(named: Verb | None) -> argparse.ArgumentParser:
    """The parser; only the verb that was named is imported."""
    parser = argparse.ArgumentParser(
        prog="kvfsm", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb in VERBS:
        text = verb.does if verb.built else f"{verb.does} (not built yet)"
        if verb is not named:
            verbs.add_parser(verb.name, help=text)
            continue
        module = verb.module()
        own = verbs.add_parser(
            verb.name,
            help=text,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(own)
        own.set_defaults(run=module.run)
    return parser
