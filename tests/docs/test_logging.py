"""The table of docs/logging.md, compared with the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .markdown import ROOT, page, table

LEVELS = ("debug", "info", "warning", "error", "critical")


def logged(source: str) -> Iterator[tuple[str, str]]:
    """List logger and level of every line that a module logs."""
    nodes = list(ast.walk(ast.parse(source)))
    loggers = {
        target.id: ast.literal_eval(node.value.args[0])
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "logging.getLogger"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func.value)
            if name in loggers and node.func.attr in LEVELS:
                yield loggers[name], node.func.attr.upper()


def test_the_table_of_loggers_is_what_the_code_logs() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "sa_jobqueue").rglob("*.py")]

    written = {
        (line["logger"].strip("`"), line["level"])
        for line in table(page("docs/logging.md"), "logger")
    }

    assert written == {line for source in sources for line in logged(source)}
