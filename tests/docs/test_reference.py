"""The reference: each public name is in it once, and its tables are what the code has."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from typing import Any

from .markdown import ROOT, page
from .plain_english import findings, pages, shown

REFERENCE = {path.name: page(str(path)) for path in (ROOT / "docs/reference").glob("*.md")}

#: The packages whose names the reference lists. `counts` to `workflow` are imported by name,
#: `owners.alive` and `owners.named_lock` hold what has no place in `sa_jobqueue` itself.
PUBLIC = (
    *("sa_jobqueue", "sa_jobqueue.asyncio", "sa_jobqueue.bulk", "sa_jobqueue.control"),
    *("sa_jobqueue.counts", "sa_jobqueue.doctor", "sa_jobqueue.events", "sa_jobqueue.migration"),
    *("sa_jobqueue.otel", "sa_jobqueue.owners", "sa_jobqueue.owners.alive"),
    *("sa_jobqueue.owners.named_lock", "sa_jobqueue.prometheus", "sa_jobqueue.rates"),
    *("sa_jobqueue.rounds", "sa_jobqueue.groups", "sa_jobqueue.schedules"),
    *("sa_jobqueue.tasks", "sa_jobqueue.testing"),
    *("sa_jobqueue.verbs", "sa_jobqueue.web"),
    *("sa_jobqueue.worker", "sa_jobqueue.workflow"),
)

#: Packages with a list of names for other packages of the library.
INTERNAL = {
    *("sa_jobqueue.cli", "sa_jobqueue.databases"),
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


def test_the_pages_are_in_plain_english() -> None:
    found = [shown(name, finding) for name in pages() for finding in findings(page(name))]

    assert "\n".join(found) == ""
