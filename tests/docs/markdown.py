"""Read tables and code blocks from the project's Markdown, and run the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    """Return the text of a page, by its path from the project's folder."""
    return (ROOT / name).read_text(encoding="utf-8")


def table(text: str, first_heading: str) -> list[dict[str, str]]:
    """Return the rows of the table whose first column is headed so."""
    lines = text.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    headings = _cells(lines[begin])
    rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(headings, _cells(line), strict=True)))
    return rows


def code_blocks(text: str, language: str) -> list[str]:
    """Return the contents of the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def run(code: str, **given: Any) -> dict[str, Any]:
    """Run code of a page with the names that it takes for granted; return all its names."""
    module = ModuleType("page")
    names = vars(module)
    names.update(given)
    sys.modules["page"] = module  # annotations are looked up there
    # Without the annotations of this module's future.
    exec(compile(code, "page", "exec", dont_inherit=True), names)
    return names


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
