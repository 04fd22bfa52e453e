"""The process of an adapter: it reads commands from standard input, a line at a time.

    python -m benchmarks.harness.host MODULE:CLASS URL BATCH

A command is the name of a method and, for some, a number. The answer is a line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Coroutine
from importlib import import_module
from typing import Any


def main(path: str, url: str, batch: str) -> None:
    """Answer commands until the input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # a library may print, and must not disturb the answers
    adapter = load(path)(url, int(batch))
    for line in sys.stdin:
        command, *arguments = line.split()
        gc.collect()
        adapter.ended_at = None
        begun = time.monotonic()
        result = getattr(adapter, command)(*map(int, arguments))
        if isinstance(result, Coroutine):
            result = adapter.loop.run(result)
        answers.write(json.dumps(answer(adapter, result, begun)) + "\n")
        answers.flush()


def answer(adapter: Any, result: Any, begun: float) -> dict[str, Any]:
    """Make the answer to a command. All processes of a machine share this clock."""
    ended = adapter.ended_at or time.monotonic()
    return {"result": result, "begun": begun, "ended": ended, "retries": adapter.retries}


def load(path: str) -> Any:
    """Import the class of an adapter."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    main(*sys.argv[1:])
