"""The rules of ``docs/reference/style.md`` that a program can check."""

import re
from collections.abc import Iterator
from typing import Final

WORDS_A_SENTENCE: Final = 25
CHARACTERS_OF_A_DESCRIPTION: Final = 200
CHARACTERS_OF_A_FIRST_SENTENCE: Final = 120  # of a plan's message
RENDERED: Final = ("message", "plan")  # with numbers

_BANNED: Final = {
    "personification: report, publish, return, show": r"\b(says?|said|saying|tells?|told|believes?|believed|thinks?)\b",
    "request, query or poll": r"\b(asks?|asked|asking)\b",
    "desired, required or targets": r"\b(wants?|wanted|wish(es|ed)?)\b",
    "evaluate, reconcile or see": r"\b(ticks?|looks|looked|looking|look(?! (up|like|around|at)))\b",
    "verify": r"\b(prov(e|es|ed|ing|en)|proof)\b",
    "queued, claimed, reserved or cached": r"\b(held|holds? back|hold of)\b",
    "drain, stop or be deleted": r"\b(let go|lets go|go(es|ne)? away|went away|leaving)\b",
    "name the subject": r"\b(who|whom|whoever|whatever|whichever|nobody|somebody|everybody)\b",
    "name the subject instead of 'what'": r"\bwhat\b",
    "restart, create again or recover": r"\b(anew|mend(s|ed)?|befall\w*)\b",
    "an internal error": r"\bby a defect\b",
    "continue": r"\bgo(es)? on\b",
    "name the number": r"\bso (long|many|much)\b(?! that)",
    "arrive, receive": r"\b(came (back|too)|comes? (back|of|out))\b",
    "end, fail": r"\b(dies|died|dead)\b",
    "no longer exists, disconnected, lost": r"\b(is|are) gone\b",
    "per second": r"\ba second\b(?! one)",
    "besides, in addition to": r"\bbeside\b",
    "no first person": r"\b(I|we|our|us|me|my)\b",
    "unset": r"\babsent:",
    "if, when or because": r"\b(lest|whence|thereby|be it|so that who)\b",
    "is not there: does not exist": r"\b(is|are) not there\b",
    "no bodily feeling of a program": r"\b(knows?|learns|sees|hears|feels?|patience|stranger\w*)\b",
}
_NOUNS: Final = (
    "worker|GPU|request|instance|token|byte|group|gateway|page|evaluation|replica|image|prompt|slot|point|plan|pool|"
    "pod|field|answer|node|container|line|block|switche"
)
_COUNTED: Final = r"(?:(?!(?:of|for|with|in|per|at|on|and|to|an?|ms|s)\b)[a-z][\w-]* ){0,2}"  # adjectives
_VERBS: Final = "are|were|have|do|need|wait|serve|run|start"
_PATTERNS: Final = {advice: re.compile(pattern, re.IGNORECASE) for advice, pattern in _BANNED.items()}
_PATTERNS["no first person"] = re.compile(r"\bI\b|\b(we|our|us|my)\b")
_COUNTS: Final = dict(_PATTERNS)
_COUNTS["singular with 1"] = re.compile(rf"(?<![\w.,-])1 (?:{_COUNTED}(?:{_NOUNS})s|(?:{_VERBS}))\b")
_COUNTS["plural with 2"] = re.compile(rf"(?<![\w.,-])2 {_COUNTED}(?:{_NOUNS})\b(?!-| (?:{_NOUNS})s| and \d)")
_COUNTS["decide between singular and plural"] = re.compile(r"\w\(e?s\)")
_QUOTED: Final = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\bhttps?://\S+|\bheld-too-long\b|\S*[/_=]\S*|--\S+")
_CLAUSE: Final = re.compile(r"(?<=[.!?])\s+|;\s|:\s|\n")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")


def faults(text: str, kind: str = "text") -> Iterator[str]:
    """What is wrong with a text, one line for each fault."""
    prose = _QUOTED.sub(" x ", text)
    for advice, pattern in (_COUNTS if kind in RENDERED else _PATTERNS).items():
        if match := pattern.search(prose):
            yield f"'{match[0]}': {advice}"
    for sentence in (_SENTENCE if kind == "plan" else _CLAUSE).split(text):
        if len(sentence.split()) > WORDS_A_SENTENCE:
            yield f"{len(sentence.split())} words in a sentence, at most {WORDS_A_SENTENCE}"
    if kind == "plan" and len(first := _SENTENCE.split(text)[0]) > CHARACTERS_OF_A_FIRST_SENTENCE:
        yield f"{len(first)} characters in the first sentence, at most {CHARACTERS_OF_A_FIRST_SENTENCE}"
    if kind == "description" and len(text) > CHARACTERS_OF_A_DESCRIPTION:
        yield f"{len(text)} characters, at most {CHARACTERS_OF_A_DESCRIPTION}"
