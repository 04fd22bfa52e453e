"""Traces of the model: which action each step takes, and what the table holds after it.

They are made by ``python -m tests.model`` and kept in ``tests/model/traces``, a line for each
trace, so that a replay needs neither Node.js nor the model's simulator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "traces"


@dataclass(frozen=True)
class Row:
    """What the model says of a row; a date is a number."""

    status: str
    owner: str
    date: int
    attempts: int


@dataclass(frozen=True)
class Step:
    """An action with what was chosen for it, and the committed rows after it.

    Attributes:
        flag: whether a lost COMMIT happened, or whether the leases are over.
    """

    action: str
    worker: str
    row: int
    how: str
    flag: bool
    rows: dict[int, Row]


Trace = list[Step]


def stored(configuration: str) -> Iterator[Trace]:
    """Read the kept traces of a configuration of the model."""
    for line in (FOLDER / f"{configuration}.jsonl").read_text(encoding="utf-8").splitlines():
        yield [read_step(step) for step in json.loads(line)]


def read_step(written: Sequence[Any]) -> Step:
    """Read a step; JSON has no numbers as keys."""
    action, worker, row, how, flag, rows = written
    table = {int(key): Row(*values) for key, values in rows.items()}
    return Step(action, worker, row, how, flag, table)


def keep(configuration: str, traces: list[Trace]) -> None:
    """Write the traces of a configuration."""
    FOLDER.mkdir(exist_ok=True)
    lines = (
        json.dumps([astuple(step) for step in trace], separators=(",", ":")) for trace in traces
    )
    text = "".join(f"{line}\n" for line in lines)
    (FOLDER / f"{configuration}.jsonl").write_text(text, encoding="utf-8")


def from_itf(text: str) -> Trace:
    """Read a trace that the simulator wrote in the Informal Trace Format."""
    return [_step(_plain(state)) for state in json.loads(text)["states"][1:]]


def _step(state: dict[str, Any]) -> Step:
    picks = state["mbt::nondetPicks"]
    rows = next(value for name, value in state.items() if name.endswith("::rows"))
    return Step(
        action=state["mbt::actionTaken"],
        worker=picks["worker"],
        row=picks["row"],
        how=picks["how"],
        flag=picks["happened"],
        rows={
            key: Row(row["status"], row["owner"], row["date"], row["attempts"])
            for key, row in rows.items()
        },
    )


def _plain(value: Any) -> Any:
    """Take away the format's wrappers of numbers, maps, sets and options."""
    if not isinstance(value, dict):
        return value
    if "#bigint" in value:
        return int(value["#bigint"])
    if "#map" in value:
        return {_plain(key): _plain(inner) for key, inner in value["#map"]}
    if "#set" in value:
        return [_plain(inner) for inner in value["#set"]]
    if "tag" in value:
        return _plain(value["value"])
    return {key: _plain(inner) for key, inner in value.items()}
