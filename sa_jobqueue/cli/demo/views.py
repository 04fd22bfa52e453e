"""How ``demo`` looks: a live table on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from .figures import AfterPause, Batches, Figures
from .proof import Proof

LINE_EVERY = 2.0

COLUMNS = ("claims", "jobs", "batch min", "avg", "max", "candidates", "lost")


class View:
    """Show the figures while the processes work."""

    def __init__(self, console: Console, figures: Figures) -> None:
        self.console = console
        self.figures = figures
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next_line = 0.0
        self._begin = time.monotonic()

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self) -> None:
        """Start the clock."""
        self.figures.rates()
        self._begin = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line, above the live table."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, doing: str, counts: dict[str, int], *, now: bool = False) -> None:
        """Show how things stand; where no live table does, now and then or `now`."""
        cells = self._cells(doing, counts)
        if self._live is not None:
            tables = now_table(cells), batches_table(self.figures)
            self._live.update(Group(*tables), refresh=True)
        elif now or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self.say("  ".join(f"{name} {value}".strip() for name, value in cells.items()))

    def show_result(self) -> None:
        """Show the table where no live one has stayed."""
        if self._live is None:
            self.console.print(batches_table(self.figures))

    def _cells(self, doing: str, counts: dict[str, int]) -> dict[str, str]:
        claims, jobs = self.figures.rates()
        return {
            "": f"{time.monotonic() - self._begin:.1f} s {doing}",
            "inserted": f"{self.figures.inserted:,}",
            "finished": f"{self.figures.everybody.jobs:,}",
            **{word: f"{count:,}" for word, count in counts.items()},
            "claims/s": f"{claims:.0f}",
            "jobs/s": f"{jobs:.0f}",
        }


def now_table(cells: dict[str, str]) -> RenderableType:
    """Show how things stand in one row: what was done, the depth by status, the rates."""
    table = Table()
    for name in cells:
        table.add_column(name, justify="right", min_width=8)
    table.add_row(*cells.values())
    return table


def batches_table(figures: Figures) -> RenderableType:
    """Show claims, batch sizes and lost candidates by consumer."""
    table = Table("consumer")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for number, batches in figures.by_consumer.items():
        table.add_row(str(number), *_cells(batches))
    table.add_section()
    table.add_row("all", *_cells(figures.everybody))
    return table


def pause_lines(pause: AfterPause) -> Iterable[str]:
    """Say how the backlog was eaten in larger batches."""
    yield f"average batch before the pause: {pause.average_before:.1f}"
    sizes = ", ".join(map(str, pause.sizes))
    yield f"average batch after the pause:  {pause.average_after:.1f}  (the first: {sizes})"


def proof_table(proof: Proof) -> RenderableType:
    """Show what the database says."""
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


def _cells(batches: Batches) -> list[str]:
    return [
        f"{batches.claims:,}",
        f"{batches.jobs:,}",
        f"{batches.smallest:,}",
        f"{batches.average:.1f}",
        f"{batches.largest:,}",
        _or_dash(batches.candidates),
        _or_dash(batches.lost),
    ]


def _or_dash(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
