"""docs/internals/architecture.md, compared with the sources and with TRANSITIONS."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import sa_jobqueue
from sa_jobqueue import TRANSITIONS

from .markdown import ROOT, code_blocks, page, table

PAGE = page("docs/internals/architecture.md")
PACKAGE = "sa_jobqueue"
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}


def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def imports(module: str, *, at_load: bool = False) -> set[str]:
    """Name the modules of the package that a module imports, or those outside of its functions.

    Imports for typing alone count, too.
    """
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    nodes: list[ast.AST] = [tree(module)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            found.update(_imported(node, package))
        elif not (at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            nodes.extend(ast.iter_child_nodes(node))
    return found & SOURCES.keys()


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
        for imported in imports(module)
        if package_of(imported) != package_of(module)
        and layer[package_of(imported)] <= layer[package_of(module)]
    }

    assert upwards == set()
    assert set(layer) == set(map(package_of, SOURCES))


def test_no_modules_import_each_other_directly_or_by_way_of_others() -> None:
    TopologicalSorter({module: imports(module, at_load=True) for module in SOURCES}).prepare()


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


def test_the_state_diagram_shows_the_transitions_of_every_verb_that_there_is() -> None:
    drawn = {(here, there, verb) for here, there, verb in arrows() if "[*]" not in (here, there)}

    declared = {
        (str(here), str(there), verb)
        for verb, changes in TRANSITIONS.items()
        if verb in sa_jobqueue.__all__
        for here, there in changes
    }

    assert drawn == declared


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
