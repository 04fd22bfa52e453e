"""Workers under faults: ``python -m tests.chaos --database postgresql --seconds 60``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from tests.chaos import many
from tests.chaos.command import main, parser_of
from tests.chaos.ground import FAULTS, ground
from tests.chaos.storm import Storm
from tests.chaos.verdict import Verdict, judge
from tests.servers import DATABASES


def run(given: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Verdict:
    """Run on a server of its own, as far as that can be had; or on one of each kind."""
    database, *others = given.database
    if others:
        return many.run(given.database, given, folder, tell)
    with ground(database, given.faults) as (made, url):
        tell(f"{database} {made.version}, {given.seconds:g} s, seed {given.seed}")
        for why in made.left_out:
            tell(f"left out: {why}")
        storm = Storm(url, folder, given, made.faults, made.far, made.through, made.clock)
        storm.run()
        return judge(storm)


def listed(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads names that are divided by commas."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names).difference(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return names

    return read


if __name__ == "__main__":
    parser = parser_of("chaos", __doc__)
    several = "or several, divided by commas, which each worker serves at once"
    parser.add_argument(
        "--database",
        type=listed(DATABASES),
        required=True,
        help=f"{', '.join(DATABASES)}; {several}",
    )
    wanted = f"of {','.join(FAULTS)}; default: all"
    parser.add_argument("--faults", type=listed(FAULTS), default=FAULTS, help=wanted)
    sys.exit(main(parser.parse_args(), run))
