"""The names of metrics and labels."""

from __future__ import annotations

#: The label of a queue's name.
QUEUE = "queue"


def metric(name: str) -> str:
    """Return the whole name of a metric."""
    return f"jobqueue_{name}"
