"""Problem codes E1xx: YAML and shape."""

from __future__ import annotations

from collections.abc import Mapping

from .problems import CodeInfo

SHAPE_CODES: Mapping[str, CodeInfo] = {
    "E101": CodeInfo(
        "the file is not YAML",
        "The text breaks the syntax of YAML, so nothing after this spot was read. Most often a colon, a "
        "hash or a bracket stands in text that wants quotes.",
        "about: rows: packed      # wrong\nabout: 'rows: packed'    # right",
    ),
    "E102": CodeInfo(
        "a tab where only spaces may stand",
        "YAML indents with spaces. An editor that shows tabs as spaces hides this mistake.",
        "word:\n\tstate: 4    # wrong\nword:\n  state: 4    # right",
    ),
    "E103": CodeInfo(
        "a key stands twice",
        "Most readers of YAML silently keep the last one. Here a name is given once.",
        "pins: 4\npins: 8    # wrong",
    ),
    "E104": CodeInfo(
        "an anchor or an alias",
        "The spec language takes the plain part of YAML only, so that a file means the same to every "
        "reader of YAML. An alias may also stand inside what it names, which has no end.",
        "cases: &shared [...]    # wrong\ncases: *shared          # wrong",
    ),
    "E105": CodeInfo(
        "an include or a merge",
        "Every file says all that it means. The folders say what belongs together: vocabulary, objects, "
        "protocols, models; so there are no includes, and no cycle of includes either.",
        "include: common.yaml    # wrong",
    ),
    "E106": CodeInfo(
        "a word that YAML 1.1 reads as a truth value",
        "The spec language takes the plain part of YAML only, so that a file means the same to every "
        "reader of YAML. 'no' and 'off' are false to one reader and words to the next.",
        "initial: yes     # wrong\ninitial: true    # right",
    ),
    "E107": CodeInfo(
        "no value",
        "A key without a value is YAML's null, which no key of the spec language takes. Inside {braces} "
        "a comma ends a value: text that holds one wants quotes.",
        "{about: drained, then freed}      # wrong\n{about: 'drained, then freed'}    # right",
    ),
    "E108": CodeInfo(
        "a number in disguise",
        "The spec language takes the plain part of YAML only, so that a file means the same to every "
        "reader of YAML. 010 is eight or ten, 1:30 is ninety, 1e3 is text or a float, 2026-01-01 is a "
        "date.",
        "pins: 010    # wrong\npins: 8      # right",
    ),
    "E109": CodeInfo(
        "a tag",
        "The spec language takes the plain part of YAML only, so that a file means the same to every "
        "reader of YAML. Tags make objects of other languages out of text.",
        "pins: !!int 8    # wrong",
    ),
    "E110": CodeInfo(
        "no document, or more than one",
        "A file holds one document, which is a mapping.",
        "machine: page\n---    # wrong",
    ),
    "E111": CodeInfo(
        "a file that is not read",
        "The file is missing, is not UTF-8, or has a name that the reader passes over. Files end in .yaml.",
        "objects/page.yml     # wrong\nobjects/page.yaml    # right",
    ),
    "E112": CodeInfo(
        "an unknown key",
        "A misspelt key would otherwise be ignored in silence.",
        "whne: pins > 0    # wrong\nwhen: pins > 0    # right",
    ),
    "E113": CodeInfo(
        "a key is missing",
        "The thing cannot be understood without it.",
        "seal: {by: writer, cases: [...]}    # wrong: no about",
    ),
    "E114": CodeInfo(
        "the wrong kind of value",
        "A number, a truth value, text, a list and a mapping are different things, and '4' in quotes is text.",
        "pins: '4'    # wrong\npins: 4      # right",
    ),
    "E115": CodeInfo(
        "not one of the choices",
        "The key takes one word of a closed list.",
        "structure: tree          # wrong\nstructure: leaf_first    # right",
    ),
    "E116": CodeInfo(
        "a number out of range",
        "The key takes numbers of a stated range only.",
        "state: 0    # wrong: one bit at least",
    ),
    "E117": CodeInfo(
        "an empty list or mapping",
        "At least one thing must stand here.",
        "from: []    # wrong",
    ),
    "E118": CodeInfo(
        "nested too deeply",
        "Nothing in the language nests that deeply; the file is damaged.",
        "[[[[[[...]]]]]]    # wrong",
    ),
    "E119": CodeInfo(
        "a key that is no word",
        "Keys are plain words; a list or a mapping cannot be one.",
        "? [a, b]\n: 3    # wrong",
    ),
}
