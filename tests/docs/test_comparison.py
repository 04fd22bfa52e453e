"""docs/comparison.md has numbers of docs/performance.md, and a source for each peer."""

from __future__ import annotations

import re

from .markdown import page, table

COMPARISON = page("docs/comparison.md")


def rates(adapter: str) -> list[float]:
    """Return what an adapter drains a second, in batches of 1, 10 and 100."""
    rows = table(page("docs/performance.md"), "jobs a second = ratio to the loop")
    row = next(row for row in rows if row["jobs a second = ratio to the loop"] == adapter)
    cells = (row[f"batch {size}"] for size in (1, 10, 100))
    return [float(cell.split(" ")[0].replace(",", "")) for cell in cells]


def test_the_ratios_to_pgqueuer_are_those_that_were_measured() -> None:
    ours, theirs = rates("PostgreSQL, Worker"), rates("PostgreSQL, PgQueuer 1.6.0")

    one, ten, hundred = (f"{a / b:.2f}" for a, b in zip(ours, theirs, strict=True))

    assert f"drained {one}, {ten} and {hundred} times" in " ".join(COMPARISON.split())


def test_each_peer_has_a_source() -> None:
    text, _, sources = COMPARISON.partition("## Sources")

    cited = set(re.findall(r"\[\^(\w+)\]", text))

    assert cited == set(re.findall(r"^\[\^(\w+)\]:", sources, re.M))
