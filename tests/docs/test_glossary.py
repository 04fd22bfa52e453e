"""The glossary of docs/internals/architecture.md: code and docs keep to its words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from .markdown import ROOT, page, table

GLOSSARY = table(page("docs/internals/architecture.md"), "word")

SOURCES = sorted((ROOT / "sa_jobqueue").rglob("*.py"))
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

#: Parts of identifiers that the glossary replaces, or that name nothing.
REPLACED_NAMES = {
    "place": "position (a rank), index (in a list), ordinal (of a column), or target (MODULE:NAME)",
    "places": "positions, indexes, ordinals or targets",
    "said": "what the function makes: a message, a text, a name",
    "rescue": "reap",
    "engines": "databases; an engine is SQLAlchemy's Engine",
}

#: An identifier that is this word alone. As a part, as in one_writer, it is a number.
NO_NAME = {"one": "the thing itself: for batch in batches"}

#: Identifiers that hold a replaced word and mean something else.
OTHER_NAMES = {"updates_in_place"}

#: Words that the glossary replaces, in comments, docstrings, messages and pages.
REPLACED_WORDS = {
    r"\bengines\b": "databases; an engine is SQLAlchemy's Engine",
    r"\b(?:each|every|other|another|both|all|per|which) engine\b": "database",
    r"\bgive_up\b": "cancel_claimed",
    r"\brescu(?:e|es|ed|ing)\b": "reap",
}


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each identifier of a module that the module chooses itself, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def better_names(name: str) -> Iterator[str]:
    """Say what to call a thing instead of by a replaced word; nothing where its name is well."""
    plain = name.strip("_").lower()
    if plain in OTHER_NAMES:
        return
    if plain in NO_NAME:
        yield NO_NAME[plain]
    for part in plain.split("_"):
        if part in REPLACED_NAMES:
            yield REPLACED_NAMES[part]


def prose(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the comments and the strings of a module, with the line where each begins."""
    tokens = list(tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline))
    for token in tokens:
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string, token.start[0]


def shown(path: Path, line: int, text: str, instead: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text!r}; say {instead}"


def replaced_words(path: Path, text: str, first_line: int) -> Iterator[str]:
    plain = re.sub(r"\s*\n(?: *#:? )?\s*", lambda found: "\n" * found[0].count("\n") + " ", text)
    for pattern, instead in REPLACED_WORDS.items():
        for found in re.finditer(pattern.replace(" ", r"\s+"), plain, re.I):
            line = first_line + plain[: found.start()].count("\n")
            yield shown(path, line, found[0], instead)


def test_the_glossary_has_at_most_thirty_words_of_one_line_each() -> None:
    assert 20 <= len(GLOSSARY) <= 30
    assert all(line["word"] and line["meaning"] for line in GLOSSARY)


@pytest.mark.parametrize("line", GLOSSARY, ids=[line["word"] for line in GLOSSARY])
def test_the_code_uses_the_words_of_the_glossary(line: dict[str, str]) -> None:
    code = "\n".join(path.read_text("utf-8") for path in SOURCES).lower()

    for word in line["word"].split(", "):
        assert re.search(rf"(?<![a-z]){word}(?![a-rt-z])", code), word


def test_no_name_in_the_code_is_a_word_that_the_glossary_replaces() -> None:
    found = [
        shown(path, line, name, instead)
        for path in SOURCES
        for name, line in names(ast.parse(path.read_text("utf-8")))
        for instead in better_names(name)
    ]

    assert "\n".join(found) == ""


def test_no_module_is_named_by_a_word_that_the_glossary_replaces() -> None:
    replaced = {"changing", "ends", "joining", "places", "rates", "showing", "undoing", "waits"}

    assert [path for path in SOURCES if path.stem in replaced | REPLACED_NAMES.keys()] == []


def test_comments_docstrings_and_messages_use_no_replaced_word() -> None:
    found = [
        text
        for path in SOURCES
        for comment, line in prose(path)
        for text in replaced_words(path, comment, line)
    ]

    assert "\n".join(found) == ""


def test_pages_use_no_replaced_word() -> None:
    found = [text for path in PAGES for text in replaced_words(path, path.read_text("utf-8"), 1)]

    assert "\n".join(found) == ""
