"""The process of one adapter: does what it is told on standard input, a line at a time.

    python -m benchmarks.harness.host MODULE:CLASS URL BATCH

A command is the name of a method and, for fill, a number. The answer is one line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib import import_module
from typing import Any

from benchmarks.adapters.adapter import Adapter


def main(path: str, url: str, batch: str) -> None:
    """Answer commands until the input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    adapter = load(path)(url, int(batch))
    for line in sys.stdin:
        command, *arguments = line.split()
        gc.collect()
        adapter.ended_at = None
        begun = time.monotonic()
        result = getattr(adapter, command)(*map(int, arguments))
        answers.write(json.dumps(answer(adapter, result, begun)) + "\n")
        answers.flush()


def answer(adapter: Adapter, result: Any, begun: float) -> dict[str, Any]:
    """Say what came of a command, and when. All processes of a machine share this clock."""
    ended = adapter.ended_at or time.monotonic()
    return {"result": result, "begun": begun, "ended": ended, "retries": adapter.retries}


def load(path: str) -> type[Adapter]:
    """Import an adapter."""
    module, _, name = path.partition(":")
    found: type[Adapter] = getattr(import_module(module), name)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
