"""What ``demo`` prints: a live table on a terminal, elsewhere a line every two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from .proof import Proof
from .totals import ClaimTotals, PauseEffect, Totals

LINE_EVERY = 2.0

COLUMNS = ("claims", "jobs", "batch min", "avg", "max", "candidates", "lost")


class Display:
    """Show the totals while the processes work."""

    def __init__(self, console: Console, totals: Totals) -> None:
        self.console = console
        self.totals = totals
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next_line = 0.0
        self._begin = time.monotonic()

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self) -> None:
        """Start the clock."""
        self.totals.rates()
        self._begin = time.monotonic()

    def print_line(self, text: str) -> None:
        """Print a line, above the live table."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, doing: str, counts: dict[str, int], *, now: bool = False) -> None:
        """Show the present totals: in the live table, or in a line if it is time or `now`."""
        cells = self._cells(doing, counts)
        if self._live is not None:
            tables = current_table(cells), batches_table(self.totals)
            self._live.update(Group(*tables), refresh=True)
        elif now or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self.print_line("  ".join(f"{name} {value}".strip() for name, value in cells.items()))

    def show_result(self) -> None:
        """Print the table of batches, unless the live table shows it already."""
        if self._live is None:
            self.console.print(batches_table(self.totals))

    def _cells(self, doing: str, counts: dict[str, int]) -> dict[str, str]:
        claims, jobs = self.totals.rates()
        return {
            "": f"{time.monotonic() - self._begin:.1f} s {doing}",
            "inserted": f"{self.totals.inserted:,}",
            "finished": f"{self.totals.all_consumers.jobs:,}",
            **{word: f"{count:,}" for word, count in counts.items()},
            "claims/s": f"{claims:.0f}",
            "jobs/s": f"{jobs:.0f}",
        }


def current_table(cells: dict[str, str]) -> RenderableType:
    """Lay out the present totals in one row: rows done, depth by status, rates."""
    table = Table()
    for name in cells:
        table.add_column(name, justify="right", min_width=8)
    table.add_row(*cells.values())
    return table


def batches_table(totals: Totals) -> RenderableType:
    """Lay out claims, batch sizes and lost candidates by consumer."""
    table = Table("consumer")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for number, of_consumer in totals.by_consumer.items():
        table.add_row(str(number), *_cells(of_consumer))
    table.add_section()
    table.add_row("all", *_cells(totals.all_consumers))
    return table


def pause_lines(pause: PauseEffect) -> Iterable[str]:
    """Tell how much larger the batches were that emptied the backlog."""
    yield f"average batch before the pause: {pause.average_before:.1f}"
    sizes = ", ".join(map(str, pause.sizes))
    yield f"average batch after the pause:  {pause.average_after:.1f}  (the first: {sizes})"


def proof_table(proof: Proof) -> RenderableType:
    """Lay out what the logs in the database show."""
    table = Table(title="from the log in the database", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("inserted", f"{proof.inserted:,}")
    table.add_row("finished", f"{proof.finished:,}")
    table.add_row("finished twice", f"{proof.twice:,}")
    table.add_row("never finished", f"{proof.unfinished:,}")
    table.add_row("finished, never inserted", f"{proof.unknown:,}")
    table.add_row("left in the table", f"{proof.left:,}")
    return table


def _cells(totals: ClaimTotals) -> list[str]:
    return [
        f"{totals.claims:,}",
        f"{totals.jobs:,}",
        f"{totals.smallest:,}",
        f"{totals.average:.1f}",
        f"{totals.largest:,}",
        _number_or_dash(totals.candidates),
        _number_or_dash(totals.lost),
    ]


def _number_or_dash(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
