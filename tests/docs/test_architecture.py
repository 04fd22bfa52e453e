"""docs/internals/architecture.md, compared with the sources and with TRANSITIONS."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sa_jobqueue
from sa_jobqueue import TRANSITIONS, JobStatus

from .markdown import ROOT, code_blocks, page, table

PAGE = page("docs/internals/architecture.md")
PACKAGE = "sa_jobqueue"
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}


def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def imports(module: str) -> set[str]:
    """Name what a module imports, in full, from the package and from elsewhere."""
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(_imported(node, package))
    return found


def imports_at_load(module: str) -> set[str]:
    """Name the modules of the package that a module imports outside of its functions.

    Imports for typing alone count, too.
    """
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    nodes: list[ast.AST] = [tree(module)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            found.update(_imported(node, package))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes.extend(ast.iter_child_nodes(node))
    return found & SOURCES.keys()


def reached(module: str, graph: dict[str, set[str]]) -> set[str]:
    """Follow the imports of a module, and theirs; return all modules on the way."""
    found: set[str] = set()
    ahead = [*graph[module]]
    while ahead:
        imported = ahead.pop()
        if imported not in found:
            found.add(imported)
            ahead.extend(graph[imported])
    return found


def _imported(node: ast.ImportFrom, package: str) -> Iterator[str]:
    parents = package.split(".")
    above = parents[: len(parents) + 1 - node.level] if node.level else []
    source = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        inner = f"{source}.{alias.name}"
        yield inner if inner in SOURCES else source


def package_of(module: str) -> str:
    """Return the name by which the table speaks of a module: its own or its package's."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def layers() -> dict[str, int]:
    """Read the table: the number of the line of each package, the top line being 0."""
    return {
        name: number
        for number, line in enumerate(table(PAGE, "layer"))
        for name in re.findall(r"`(\w+)`", line["packages"])
    }


def arrows() -> set[tuple[str, str, str]]:
    """Read the state diagram: from, to and verb of each arrow."""
    (diagram,) = code_blocks(PAGE, "mermaid")
    return set(re.findall(r"^\s*(\S+) --> (\S+) : (\w+)$", diagram, re.M))


def test_a_module_imports_only_from_the_layers_below_its_own() -> None:
    layer = layers()

    upwards = {
        (module, imported)
        for module in SOURCES
        for imported in imports(module) & set(SOURCES)
        if package_of(imported) != package_of(module)
        and layer[package_of(imported)] <= layer[package_of(module)]
    }

    assert upwards == set()
    assert set(layer) == set(map(package_of, SOURCES))


def test_no_modules_import_each_other_directly_or_by_way_of_others() -> None:
    graph = {module: imports_at_load(module) for module in SOURCES}

    circles = {
        frozenset(other for other in reached(module, graph) if module in reached(other, graph))
        for module in graph
        if module in reached(module, graph)
    }

    assert [sorted(circle) for circle in circles] == []


def test_a_package_opens_with_a_sentence_that_tells_what_lives_there() -> None:
    packages = [name for name, path in SOURCES.items() if path.name == "__init__.py"]

    for module in packages:
        first, *rest = (ast.get_docstring(tree(module)) or "").splitlines() or [""]
        assert first.endswith((".", ":")), f"{module}: one line, with its full stop"
        assert len(first.split()) >= 4, module
        assert not rest or not rest[0], f"{module}: then an empty line"


def test_the_name_of_a_dialect_is_read_in_dialects_only() -> None:
    read = [
        f"{module}:{node.lineno}: ask the Database for a capability"
        for module in SOURCES
        if package_of(module) != "dialects"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr == "name" and _is_dialect(node.value)
    ]

    assert read == []


def _is_dialect(node: ast.expr) -> bool:
    name = getattr(node, "attr", None) or getattr(node, "id", None)
    return name == "dialect"


def test_nothing_imports_alembic_but_migration_and_nothing_imports_migration() -> None:
    for module in SOURCES:
        if package_of(module) != "migration":
            used = {imported.partition(".")[0] for imported in imports(module)}
            packages = {package_of(imported) for imported in imports(module) & set(SOURCES)}
            assert not {"alembic"} & used | {"migration"} & packages, module


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
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", _without_code(path))
        if not Path(path.parent, target).exists()
    ]

    assert broken == []


def _without_code(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
