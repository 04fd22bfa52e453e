"""What is written of a run: JSON for programs, Markdown for people."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from benchmarks.harness.databases import durability
from benchmarks.harness.rounds import Plan, Result

PACKAGES = ("sa_jobqueue", "SQLAlchemy", "psycopg2-binary", "PyMySQL", "asyncpg", "asyncmy")


def conditions(plan: Plan) -> dict[str, Any]:
    """Say under which conditions was measured."""
    engine = create_engine(plan.url)
    with engine.connect():
        found = getattr(engine.dialect, "server_version_info", None)
    engine.dispose()
    return {
        "engine": plan.engine,
        "server": ".".join(map(str, found or ())),
        "workers": plan.workers,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "durability": durability(plan.engine, plan.url),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def as_json(plan: Plan, results: list[Result]) -> str:
    """Write everything that was measured."""
    return json.dumps(
        {
            "conditions": conditions(plan),
            "results": [
                {
                    "adapter": result.adapter,
                    "batch": result.batch,
                    "rate": round(result.rate, 1),
                    "ratio": round(result.ratio, 3),
                    "ratios": [round(ratio, 3) for ratio in result.ratios],
                    "fill_rate": round(result.fill_rate, 1),
                    "retries": result.retries,
                    "drains": [asdict(drain) for drain in result.drains],
                }
                for result in results
            ],
        },
        indent=1,
    )


def as_markdown(results: list[Result]) -> str:
    """Write a table: an adapter a row, a batch size a column, each with rate and ratio."""
    batches = sorted({result.batch for result in results})
    found = {(result.adapter, result.batch): result for result in results}
    adapters = list(dict.fromkeys(result.adapter for result in results))
    lines = [
        "| | " + " | ".join(f"batch {batch}" for batch in batches) + " |",
        "|---" * (len(batches) + 1) + "|",
    ]
    for adapter in adapters:
        cells = (_cell(found.get((adapter, batch))) for batch in batches)
        lines.append(f"| {adapter} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    retried = f", {result.retries} deadlocks" if result.retries else ""
    return f"{result.rate:,.0f} = {result.ratio:.2f}{retried}"


def write(folder: Path, plan: Plan, results: list[Result]) -> Path:
    """Write the JSON file of an engine, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"drain-{plan.engine}.json"
    path.write_text(as_json(plan, results) + "\n")
    return path


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
