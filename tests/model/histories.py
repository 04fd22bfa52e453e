"""Let the model judge a recorded history: ``python -m tests.model.histories history.jsonl``.

It exits with 0 if the model can take every step of the history, else with 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.model.recorded import Line, Recorded
from tests.model.simulator import MODEL, quint

#: For jobs without max_attempts, which are tried until they succeed.
NEVER_FAILED = 1_000_000

TEMPLATE = """module history {{
  import queue(
    ROWS = Set({rows}), WORKERS = Set({workers}), PLAIN = Set({plain}),
    NAMES = Map({names}), KEYS = Map({keys}), MAX_ATTEMPTS = {max_attempts},
    ONE_WRITER = false, FENCED = true, ASKS_WHO_LIVES = true, LOOKS_AGAIN = true, LOCKS_KEYS = true
  ).* from "queue"

  pure def line(verb: str, worker: str, row: int, date: int, how: str, happened: bool,
    status: str, attempts: int): Entry = {{
      verb: verb, worker: worker, row: row, date: date, how: how, happened: happened,
      status: status, attempts: attempts,
    }}

  pure val lines: List[Entry] = [
{lines}
  ]

  run historyTest = init.then(
    lines.length().reps(i => follow(lines[i]).expect(agrees(lines[i]) and safe)))
}}
"""


def accepted(*paths: Path, table: str, max_attempts: int = NEVER_FAILED) -> bool:
    """Tell whether the model can take every step of a history, in one of its worlds.

    Args:
        paths: the ledgers of a run.
        table: whose jobs.
        max_attempts: of every job of the table.

    Raises:
        ValueError: the history has what the model does not know.
    """
    recorded = Recorded(*paths, table=table)
    return any(follows(recorded, lines, max_attempts) for lines in recorded.worlds())


def follows(recorded: Recorded, lines: Iterable[Line], max_attempts: int) -> bool:
    """Tell whether the model can take these steps, and its invariants hold after each."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL / "queue.qnt", folder)
        written = Path(folder) / "history.qnt"
        written.write_text(in_quint(recorded, lines, max_attempts), encoding="utf-8")
        done = quint(
            "test", str(written), "--backend=typescript", "--main=history", "--max-samples=1"
        )
    if done.returncode and "QNT508" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return not done.returncode


def in_quint(recorded: Recorded, lines: Iterable[Line], max_attempts: int) -> str:
    """Write a history in Quint, as a run of the model."""
    return TEMPLATE.format(
        rows=_list(recorded.keys),
        workers=_list(recorded.names),
        plain=_list(recorded.plain),
        names=_map(recorded.names),
        keys=_map(recorded.keys),
        max_attempts=max_attempts,
        lines=",\n".join(f"    line({line})" for line in lines),
    )


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(json.dumps, values))


def _map(values: dict[str, str] | dict[int, str]) -> str:
    return ", ".join(f"{json.dumps(key)} -> {json.dumps(value)}" for key, value in values.items())


def main() -> None:
    """Judge the history of one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--table", required=True)
    parser.add_argument("--max-attempts", type=int, default=NEVER_FAILED)
    given = parser.parse_args()
    found = accepted(*given.paths, table=given.table, max_attempts=given.max_attempts)
    raise SystemExit(not found)


if __name__ == "__main__":
    main()
