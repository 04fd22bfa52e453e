"""What the smaller benchmarks write: a JSON file, and tables in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import conditions
from benchmarks.harness.rounds import Plan

RESULTS = Path(__file__).resolve().parents[1] / "results"

#: What of a drain's conditions holds for every benchmark.
COMMON = ("engine", "server", "cores", "python", "packages")


def write_json(folder: Path, name: str, engine: str, url: str, found: dict[str, Any]) -> Path:
    """Write what was found, and under which conditions, to ``NAME-ENGINE.json``."""
    plan = Plan(engine, url, workers=1, batches=(), rounds=0, seconds=0)
    about = conditions(plan)
    written = {"conditions": {key: about[key] for key in COMMON}, **found}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{engine}.json"
    path.write_text(json.dumps(written, indent=1) + "\n")
    return path


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
