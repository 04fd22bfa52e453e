"""What is written of a run: a JSON file for programs and plots, Markdown tables for people.

A benchmark's figures are rows of plain values by name, as the JSON file holds them. Tables and
plots read nothing else, so they can be made again from a file.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.harness.databases import Database

Row = dict[str, Any]
Figures = dict[str, list[Row]]

#: A column: its head, and a cell as a template of :meth:`str.format` or made by a function.
Column = tuple[str, str | Callable[[Row], str]]

PACKAGES = ("sa_jobqueue", "SQLAlchemy", "psycopg2-binary", "PyMySQL", "asyncpg", "asyncmy")


def write(
    folder: Path, name: str, database: Database, options: Mapping[str, Any], figures: Figures
) -> Path:
    """Write the conditions and the figures to ``NAME-DATABASE.json``; return its path."""
    conditions = {
        **database.conditions(),
        **options,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{database.name}.json"
    path.write_text(json.dumps({"conditions": conditions, **figures}, indent=1) + "\n")
    return path


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Write a table in Markdown, a line for each row."""
    heads = [head for head, _ in columns]
    lines = [heads, ["---"] * len(heads)]
    lines += [[_text(cell, row) for _, cell in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(cell: str | Callable[[Row], str], row: Row) -> str:
    return cell.format_map(row) if isinstance(cell, str) else cell(row)


def titled(*tables: tuple[str, Sequence[Column], Sequence[Row]]) -> str:
    """Write tables, each under its title; those without rows are left out."""
    return "\n\n".join(
        f"{title}\n\n{table(columns, rows)}" for title, columns, rows in tables if rows
    )
