"""Find sentences that have to be read twice: ``python -m tests.docs.plain_english``.

The rules stand in CONTRIBUTING.md, under "Plain English": the length of a sentence, the words
that begin none, and the table of phrases to avoid with what to say instead. Code is not judged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from .markdown import ROOT, page, table

MOST_WORDS = 30

#: A sentence that begins so has no subject yet, or leaves out what it goes on from.
BAD_BEGINNINGS = ("So", "Nor", "Of", "Besides", "Else")

PHRASES = {
    phrase: row["say"]
    for row in table(page("CONTRIBUTING.md"), "avoid")
    for phrase in row["avoid"].replace("`", "").split(", ")
}


_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9`])")
_ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf)\.$")
_WORD = re.compile(r"[\w'%`./=-]*\w[\w'%`./=-]*")


@dataclass(frozen=True)
class Finding:
    """A sentence, the line of its paragraph, and what to change."""

    line: int
    sentence: str
    complaint: str


def pages() -> list[str]:
    """Return the pages that are judged, by their paths."""
    top = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return [*top, *docs]


def findings(text: str) -> Iterator[Finding]:
    """Yield what to change in a page."""
    for line, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            for complaint in complaints(sentence):
                yield Finding(line, sentence, complaint)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, item, heading and cell with its line; code is one word."""
    line = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.map:
            line = token.map[0] + 1
        if token.type == "inline":
            yield line, " ".join("".join(map(plain, token.children or [])).split())


def plain(token: Token) -> str:
    """Return the text of a part of a paragraph."""
    if token.type == "code_inline":
        return "`code`"
    return " " if token.type in ("softbreak", "hardbreak") else token.content


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph."""
    begun = ""
    for part in _END.split(paragraph):
        begun = f"{begun} {part}".strip()
        if not _ABBREVIATIONS.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def complaints(sentence: str) -> Iterator[str]:
    """Yield what to change in a sentence."""
    words = _WORD.findall(sentence)
    if len(words) > MOST_WORDS:
        yield f"{len(words)} words: make two sentences of it"
    if words and words[0] in BAD_BEGINNINGS:
        yield f"begin with the subject, not with {words[0]!r}"
    for phrase, instead in PHRASES.items():
        if re.search(rf"\b{phrase}\b", sentence, re.I):
            yield f"instead of {phrase!r} say: {instead}"


def shown(name: str, finding: Finding) -> str:
    return f"{name}:{finding.line}: {finding.complaint}\n    {finding.sentence}"


def main(names: list[str]) -> int:
    found = [
        shown(name, finding)
        for name in names or pages()
        for finding in findings(Path(ROOT, name).read_text(encoding="utf-8"))
    ]
    sys.stdout.writelines(f"{text}\n" for text in found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
