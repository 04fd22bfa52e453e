"""docs/internals/architecture.md, compared with the sources; and the links of all pages."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

from .markdown import ROOT, page, table

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
    is_package = SOURCES[module].name == "__init__.py"
    found: set[str] = set()
    nodes: list[ast.AST] = [tree(module)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: None if is_package else -1]
            above = parents[: len(parents) + 1 - node.level] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            named = (f"{source}.{alias.name}" for alias in node.names)
            found.update(name if name in SOURCES else source for name in named)
        elif not (at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            nodes.extend(ast.iter_child_nodes(node))
    return found & SOURCES.keys()


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
