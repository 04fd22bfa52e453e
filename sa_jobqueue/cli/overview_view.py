"""What ``status`` and ``top`` show of several queues: a table of 80 columns, or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from ..ages import age_text
from ..counts import Count, QueueStats
from ..owners.alive import OwnerState
from .printing import printable

#: Where a value is not known, since no index serves the question.
NOT_INDEXED = "not indexed"


def as_data(target: str, seen: QueueStats) -> dict[str, Any]:
    """Return a queue as JSON has it: times in ISO 8601, ages in seconds, null where unknown."""
    return {
        "target": target,
        "queue": seen.name,
        "due": _count(seen.due),
        "oldest_seconds": None if seen.oldest is None else seen.oldest.total_seconds(),
        "next_due": None if seen.next_due is None else seen.next_due.isoformat(),
        "claimed": _count(seen.claimed),
        "failed": _count(seen.failed),
        "cancelled": _count(seen.cancelled),
        "finished_per_second": seen.rate,
        "paused": None if seen.paused is None else seen.paused.isoformat(),
        "workers": _workers(seen),
    }


def _count(count: Count | None) -> dict[str, Any] | None:
    return None if count is None else {"number": count.number, "more": count.more}


def _workers(seen: QueueStats) -> dict[str, int] | None:
    """Count the workers by their state."""
    if seen.workers is None:
        return None
    states = [worker.state for worker in seen.workers]
    return {state.name.lower(): states.count(state) for state in OwnerState}


def overview_table(queues: Mapping[str, QueueStats]) -> Table:
    """Lay out queues by the names of their targets."""
    right = ("due", "oldest", "next", "claimed", "failed", "done/s", "workers")
    table = Table(
        Column("queue", overflow="ellipsis"),  # the only one that rich may make narrower
        *(Column(name, justify="right", no_wrap=True) for name in right),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for target, seen in queues.items():
        table.add_row(*_cells(target, seen))
    return table


def pause_text(queue: str, since: datetime) -> str:
    """Say that a queue is paused, by its name."""
    return f"{printable(queue)} is paused since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cells(target: str, seen: QueueStats) -> list[str]:
    coming = None if seen.next_due is None else seen.next_due - datetime.now(UTC)
    return [
        escape(target.rpartition(":")[2]),
        str(seen.due),
        age_text(seen.oldest),
        age_text(coming),
        str(seen.claimed),
        NOT_INDEXED if seen.failed is None else str(seen.failed),
        _rate_text(seen.rate),
        _workers_text(seen),
    ]


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _workers_text(seen: QueueStats) -> str:
    """Count the workers, those that are dead apart; say that they rest."""
    if seen.workers is None:
        return "-"
    dead = sum(worker.state is OwnerState.DEAD for worker in seen.workers)
    words = [f"{len(seen.workers) - dead}"]
    words += [f"[red]{dead} dead[/]"] if dead else []
    words += ["[yellow]paused[/]"] if seen.paused else []
    return " ".join(words)
