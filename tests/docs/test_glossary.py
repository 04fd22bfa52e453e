"""The glossary of docs/internals/architecture.md: code and docs keep to its words."""

from __future__ import annotations

import re

from .markdown import ROOT, page, table

GLOSSARY = table(page("docs/internals/architecture.md"), "word")

SOURCES = sorted((ROOT / "sa_jobqueue").rglob("*.py"))
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

#: Words that the glossary replaces, in names, comments, docstrings, messages and pages.
REPLACED_WORDS = {
    r"\bengines\b": "databases; an engine is SQLAlchemy's Engine",
    r"\b(?:each|every|other|another|both|all|per|which)\s+engine\b": "database",
    r"\bgive_up\b": "cancel_claimed",
    r"(?:\b|_)rescu(?:e|es|ed|ing)(?:\b|_)": "reap",
}


def test_the_glossary_has_at_most_thirty_words_of_one_line_each() -> None:
    assert 20 <= len(GLOSSARY) <= 30
    assert all(line["word"] and line["meaning"] for line in GLOSSARY)


def test_the_code_uses_the_words_of_the_glossary() -> None:
    code = "\n".join(path.read_text("utf-8") for path in SOURCES).lower()

    words = [word for line in GLOSSARY for word in line["word"].split(", ")]

    assert [word for word in words if not re.search(rf"(?<![a-z]){word}(?![a-rt-z])", code)] == []


def test_code_and_pages_use_no_replaced_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word[0]!r}; say {instead}"
        for path in (*SOURCES, *PAGES)
        for pattern, instead in REPLACED_WORDS.items()
        for word in re.finditer(pattern, path.read_text("utf-8"), re.I)
    ]

    assert found == []
