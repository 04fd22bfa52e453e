"""docs/architecture.md, held against the sources and against TRANSITIONS."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sa_jobqueue
from sa_jobqueue import TRANSITIONS, JobStatus

from .markdown import ROOT, code_blocks, page, table

PAGE = page("docs/architecture.md")
PACKAGE = "sa_jobqueue"
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}


def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def imports(module: str) -> set[str]:
    """Name what a module imports: modules of the package in full, of others likewise."""
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(_imported(node, package))
    return found


def _imported(node: ast.ImportFrom, package: str) -> Iterator[str]:
    parents = package.split(".")
    above = parents[: len(parents) + 1 - node.level] if node.level else []
    source = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        inner = f"{source}.{alias.name}"
        yield inner if inner in SOURCES else source


def room(module: str) -> str:
    """Return the name by which the table speaks of a module: its own or its package's."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def layers() -> dict[str, int]:
    """Read the table: the place of each room, the top line being 0."""
    return {
        name: place
        for place, line in enumerate(table(PAGE, "layer"))
        for name in re.findall(r"`(\w+)`", line["packages"])
    }


def arrows() -> set[tuple[str, str, str]]:
    """Read the state diagram: from, to and verb of each arrow."""
    (diagram,) = code_blocks(PAGE, "mermaid")
    return set(re.findall(r"^\s*(\S+) --> (\S+) : (\w+)$", diagram, re.M))


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_only_from_the_layers_below_its_own(module: str) -> None:
    place = layers()
    own = room(module)

    upwards = {
        imported
        for imported in imports(module) & set(SOURCES)
        if room(imported) != own and place[room(imported)] <= place[own]
    }

    assert own in place
    assert upwards == set()


def test_the_table_lists_no_module_that_is_not_there() -> None:
    there = {room(module) for module in SOURCES}

    listed = set(layers())

    assert listed - there == set()


@pytest.mark.parametrize("module", [name for name in SOURCES if room(name) != "dialects"])
def test_the_name_of_a_dialect_is_read_in_dialects_only(module: str) -> None:
    read = [
        node.lineno
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr == "name" and _is_dialect(node.value)
    ]

    assert read == [], f"{module}: ask the Database for a capability"


def _is_dialect(node: ast.expr) -> bool:
    name = getattr(node, "attr", None) or getattr(node, "id", None)
    return name == "dialect"


@pytest.mark.parametrize("module", [name for name in SOURCES if room(name) != "migration"])
def test_nothing_imports_alembic_but_migration_and_nothing_imports_migration(module: str) -> None:
    used = {imported.partition(".")[0] for imported in imports(module)}
    rooms = {room(imported) for imported in imports(module) & set(SOURCES)}

    assert "alembic" not in used
    assert "migration" not in rooms


def test_the_folder_of_migrations_is_no_package() -> None:
    folder = ROOT / "alembic"

    assert (folder / "env.py").exists()
    assert not (folder / "__init__.py").exists()  # it would hide the library


def test_the_state_diagram_shows_the_transitions_of_every_verb_that_there_is() -> None:
    drawn = {(here, there, verb) for here, there, verb in arrows() if "[*]" not in (here, there)}

    declared = {
        (str(here), str(there), verb)
        for verb, changes in TRANSITIONS.items()
        if verb in sa_jobqueue.__all__
        for here, there in changes
    }

    assert drawn == declared


def test_the_state_diagram_names_statuses_and_public_verbs() -> None:
    states = {state for here, there, _ in arrows() for state in (here, there)}
    verbs = {verb for _, _, verb in arrows()}

    assert states == {"[*]", *map(str, JobStatus)}
    assert verbs <= set(sa_jobqueue.__all__)


def test_pages_link_to_files_that_are_there() -> None:
    broken = [
        (path.name, target)
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", path.read_text(encoding="utf-8"))
        if not Path(path.parent, target).exists()
    ]

    assert broken == []
