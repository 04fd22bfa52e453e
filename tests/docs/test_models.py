"""Each table that a page or a docstring shows can be created on all four databases."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Table, orm
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateTable

import sa_jobqueue
from sa_jobqueue.otel import TraceMixin

from .markdown import ROOT, code_blocks

DIALECTS = [
    make_url(f"{name}://").get_dialect()()
    for name in ("sqlite", "postgresql+psycopg2", "mysql+pymysql", "mariadb+pymysql")
]

#: SQLite has no partitions, and so no table of that page.
WITHOUT_PARTITIONS = ("docs/partitions.md", "sqlite")

#: What a page may take from, as far as its tables go.
LIBRARIES = {"datetime", "enum", "sa_jobqueue", "sqlalchemy", "typing"}


def blocks_of(file: Path) -> Iterator[str]:
    """Give the Python of a page, or that of a module's docstrings."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield from code_blocks(text, "python")
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            shown = re.findall(r"::\n\n((?: .*\n?|\n)+)", ast.get_docstring(node) or "")
            yield from map(textwrap.dedent, shown)


def tables_of(block: str, names: dict[str, Any]) -> Iterator[Table]:
    """Make the mapped classes of a block, with what they use of it."""
    body = ast.parse(block).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    used = {node.id for each in classes for node in ast.walk(each) if isinstance(node, ast.Name)}
    for node in body:
        if is_needed(node, used):
            exec(compile(ast.Module([node], []), "page", "exec", dont_inherit=True), names)
        if isinstance(node, ast.ClassDef) and hasattr(names[node.name], "__table__"):
            yield names[node.name].__table__


def is_needed(node: ast.stmt, used: set[str]) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return module.partition(".")[0] in LIBRARIES
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in used
        case _:
            return isinstance(node, ast.ClassDef)


SHOWN = {
    str(file.relative_to(ROOT)): blocks
    for file in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("sa_jobqueue/**/*.py"))
    if (blocks := [block for block in blocks_of(file) if "__tablename__ =" in block])
}


@pytest.mark.parametrize("file", sorted(SHOWN))
def test_the_tables_of_a_page_can_be_created_on_all_databases(file: str) -> None:
    names = {**vars(sqlalchemy), **vars(orm), **vars(sa_jobqueue), "TraceMixin": TraceMixin}

    for block in SHOWN[file]:
        names["Base"] = orm.declarative_base()
        tables = list(tables_of(block, names))

        assert tables
        for table in tables:
            for dialect in DIALECTS:
                if (file, dialect.name) != WITHOUT_PARTITIONS:
                    CreateTable(table).compile(dialect=dialect)
