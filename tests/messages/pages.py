"""The prose of documentation pages: paragraphs and list items, without code, tables and headings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from messages.style import WORDS_A_SENTENCE

_CODE: Final = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"`[^`]*`|\"[^\"]*\"|https?://\S+")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"^(?:[*+-]|\d{1,2}\.) ")
_WORD: Final = re.compile(r"(?<!\S)(?!x[.,;)]*(?!\S))\S*\w\S*")  # names in code are not counted
_SENTENCE: Final = re.compile(r"(?<=[.!?])[*_)]*\s+|[;:][*_)]*\s| · ")
_BANNED: Final = {
    "personification: report, publish, return, show": r"\b(says?|said|tells?|told|believes?|believed)\b",
    "desired, required or needed": r"\b(wants|wanted|wish(es|ed)?)\b",
    "queued, claimed, reserved or cached": r"\bheld\b",
    "has, recognises, is configured with": r"\b(knows|learns)\b",
    "name the subject": r"\b(those that|what is\b(?!.*\?))",
}
_PATTERNS: Final = {advice: re.compile(pattern, re.IGNORECASE) for advice, pattern in _BANNED.items()}


def prose(page: Path) -> Iterator[str]:
    """Each paragraph and list item as one line."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        skipped = not stripped or stripped.startswith(("#", "|", "<", ">")) or (line.startswith("    ") and not block)
        if skipped or _ITEM.match(stripped):
            if block:
                yield " ".join(block)
            block = []
        if not skipped:
            block.append(_ITEM.sub("", stripped, count=1))


def faults_of_page(page: Path) -> Iterator[str]:
    """Long sentences and banned patterns, each with its sentence."""
    for paragraph in prose(page):
        for sentence in _SENTENCE.split(_LINK.sub(r"\1", _INLINE.sub("x", paragraph))):
            if (words := len(_WORD.findall(sentence))) > WORDS_A_SENTENCE:
                yield f"{words} words, at most {WORDS_A_SENTENCE}: {sentence}"
            for advice, pattern in _PATTERNS.items():
                if match := pattern.search(sentence):
                    yield f"'{match[0]}', {advice}: {sentence}"
