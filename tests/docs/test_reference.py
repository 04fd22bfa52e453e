"""The reference: each public name is in it once, and its tables are what the code has."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click
import pytest

from sa_jobqueue.cli import cli

from .markdown import ROOT, page
from .plain_english import findings, pages, shown

REFERENCE = {path.name: page(str(path)) for path in (ROOT / "docs/reference").glob("*.md")}

#: The packages whose names the reference lists. `counts` to `workflow` are imported by name,
#: `owners.alive` and `owners.named_lock` hold what has no place in `sa_jobqueue` itself.
PUBLIC = (
    *("sa_jobqueue", "sa_jobqueue.asyncio", "sa_jobqueue.bulk", "sa_jobqueue.control"),
    *("sa_jobqueue.counts", "sa_jobqueue.doctor", "sa_jobqueue.events", "sa_jobqueue.migration"),
    *("sa_jobqueue.otel", "sa_jobqueue.owners", "sa_jobqueue.owners.alive"),
    *(
        "sa_jobqueue.owners.named_lock",
        "sa_jobqueue.prometheus",
    ),
    *("sa_jobqueue.schedules", "sa_jobqueue.testing", "sa_jobqueue.verbs", "sa_jobqueue.web"),
    *("sa_jobqueue.worker", "sa_jobqueue.workflow"),
)

#: Packages with a list of names for other packages of the library.
INTERNAL = {
    *("sa_jobqueue.cli", "sa_jobqueue.dialects"),
    *("sa_jobqueue.strategies", "sa_jobqueue.wakeups"),
}

DIRECTIVE = re.compile(
    r"^\.\. (?:auto(?:class|data|exception|function)|py:(?:data|function)):: (.+(?:\n {10,}.+)*)",
    re.M,
)


def documented() -> Counter[str]:
    """Count how often each name is an entry of the reference."""
    return Counter(
        line.strip().partition("(")[0]
        for text in REFERENCE.values()
        for entry in DIRECTIVE.findall(text)
        for line in entry.splitlines()
    )


def public() -> set[str]:
    """Return the public names, each of the first package that has it."""
    names: dict[Any, str] = {}
    for package in PUBLIC:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            # A number or a duration of one package may equal that of another.
            names.setdefault(value if callable(value) else f"{package}.{name}", f"{package}.{name}")
    return set(names.values())


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of all entries, and of their methods and properties."""
    for name in sorted(documented()):
        module, _, attribute = name.rpartition(".")
        entry = getattr(import_module(module), attribute)
        members = vars(entry) if isinstance(entry, type) else {}
        yield name, described(entry)
        for member, value in members.items():
            if not member.startswith("_"):
                yield f"{name}.{member}", described(getattr(value, "__func__", value))


def described(value: object) -> str:
    """Return the docstring of a class, a function or a property."""
    own = inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, property)
    return (inspect.getdoc(value) or "") if own else ""


def as_paragraphs(docstring: str) -> str:
    """Make a paragraph of each argument, attribute and exception."""
    text = re.sub(r"^(?:Args|Attributes|Raises|Returns|Yields):$", "", docstring, flags=re.M)
    return re.sub(r"^ {4}(?=[\w, ]+: )", "\n", text, flags=re.M)


def imported_by_pages() -> set[str]:
    """Return what the pages' code imports of the internal packages."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md"))
    imports = re.findall(r"^from (sa_jobqueue\.\w+) import (\([^)]+\)|.+)$", code, re.M)
    return {
        f"{package}.{name}"
        for package, names in imports
        if package in INTERNAL
        for name in re.findall(r"\w+", names.partition("#")[0])
    }


def test_each_public_name_is_in_the_reference_once() -> None:
    entries = documented()

    assert public() - set(entries) == set()
    assert {name for name, times in entries.items() if times > 1} == set()


def test_each_package_with_a_list_of_names_is_public_or_internal() -> None:
    root = ROOT / "sa_jobqueue"
    packages = {
        f"sa_jobqueue.{path.relative_to(root).parts[0].removesuffix('.py')}"
        for path in (*root.glob("*/__init__.py"), *root.glob("[!_]*.py"))
        if "__all__ = " in path.read_text(encoding="utf-8")
    }

    assert packages == {package for package in (*PUBLIC, *INTERNAL) if package.count(".") == 1}


def test_pages_import_from_public_packages() -> None:
    assert imported_by_pages() - {"sa_jobqueue.cli.cli"} == set()


def test_docstrings_of_the_reference_are_in_plain_english() -> None:
    found = [
        f"{name}: {finding.complaint}: {finding.sentence}"
        for name, docstring in docstrings()
        for finding in findings(as_paragraphs(docstring))
    ]

    assert found == []


def test_the_pages_are_in_plain_english() -> None:
    found = [shown(name, finding) for name in pages() for finding in findings(page(name))]

    assert "\n".join(found) == ""


@pytest.mark.parametrize("name", cli.commands)
def test_a_help_text_is_in_plain_english(name: str) -> None:
    command = cli.commands[name]
    options = [option for option in command.params if isinstance(option, click.Option)]

    texts = [command.help or "", *(option.help or "" for option in options)]

    assert [finding for text in texts for finding in findings(text)] == []
