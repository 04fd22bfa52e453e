"""Profile the Python time of claims.

python -m benchmarks.profile --engine postgresql --batch 1,10,100
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import batch_sizes
from benchmarks.adapters.catalogue import ENGINES
from benchmarks.harness.databases import database
from benchmarks.harness.report import say
from benchmarks.harness.written import RESULTS, table, write_json
from benchmarks.profile.measuring import Profile, profile
from benchmarks.profile.stages import STAGES
from benchmarks.profile.variants import OURS
from tests.servers import ServerUnavailable


@click.command()
@click.option("--engine", type=click.Choice(ENGINES), required=True)
@click.option("--url", help="Of a server; by default the one that the tests would use.")
@click.option("--batch", callback=batch_sizes, default="1,10,100", show_default=True)
@click.option("--calls", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--rows/--no-rows", "rows", default=None, help="Rows alone, or entities alone.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go."
)
def main(
    engine: str,
    url: str | None,
    batch: tuple[int, ...],
    calls: int,
    rounds: int,
    rows: bool | None,
    results: Path,
) -> None:
    """Profile claim and finish beside the driver, Core and the ORM, and by stage."""
    ours = OURS if rows is None else OURS[:1] if rows else OURS[1:]
    try:
        with database(engine, url) as found:
            profiles = [
                profile(engine, found, batch=size, calls=calls, rounds=rounds, ours=ours)
                for size in batch
            ]
            path = write_json(results, "profile", engine, found, _plain(profiles, calls, rounds))
    except ServerUnavailable as error:
        raise click.ClickException(str(error)) from error
    for one in profiles:
        say(as_markdown(one))
    say(f"written: {path}")


def _plain(profiles: list[Profile], calls: int, rounds: int) -> dict[str, Any]:
    return {"calls": calls, "rounds": rounds, "profiles": [asdict(one) for one in profiles]}


def as_markdown(profile: Profile) -> str:
    """Write two tables: beside the driver, Core and the ORM; and by stage."""
    return f"""
Batch {profile.batch}: microseconds of client CPU for one batch

{_variants(profile)}

{_stages(profile)}"""


def _variants(profile: Profile) -> str:
    return table(
        ("", "claim", "COMMIT", "finish", "COMMIT", "all", "for each job"),
        [
            (
                name,
                *(f"{microseconds:,.0f}" for microseconds in asdict(steps).values()),
                f"{steps.all:,.0f}",
                f"{steps.all / profile.batch:,.1f}",
            )
            for name, steps in profile.variants.items()
        ],
    )


def _stages(profile: Profile) -> str:
    """List the stages; what their sum differs by from the table above is the measuring's."""
    return table(
        ("", *STAGES, "all", "for each job"),
        [
            (
                name,
                *(f"{stages[stage]:,.0f}" for stage in STAGES),
                f"{sum(stages.values()):,.0f}",
                f"{sum(stages.values()) / profile.batch:,.1f}",
            )
            for name, stages in profile.stages.items()
        ],
    )


if __name__ == "__main__":
    main()
