"""Workers under faults: ``python -m tests.chaos --database postgresql --seconds 60``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.chaos.command import main, parser_of
from tests.chaos.ground import FAULTS, ground
from tests.chaos.storm import Storm
from tests.chaos.verdict import Verdict, judge
from tests.servers import DATABASES


def run(given: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Verdict:
    """Run on a server of its own, as far as that can be had."""
    with ground(given.database, given.faults) as (made, url):
        tell(f"{given.database} {made.version}, {given.seconds:g} s, seed {given.seed}")
        for why in made.left_out:
            tell(f"left out: {why}")
        storm = Storm(url, folder, given, made.faults, made.far, made.through, made.clock)
        storm.run()
        return judge(storm)


def listed(text: str) -> tuple[str, ...]:
    """Read names that are divided by commas."""
    names = tuple(text.split(","))
    if unknown := set(names).difference(FAULTS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    parser = parser_of("chaos", __doc__)
    parser.add_argument("--database", choices=DATABASES, required=True)
    wanted = f"of {','.join(FAULTS)}; default: all"
    parser.add_argument("--faults", type=listed, default=FAULTS, help=wanted)
    sys.exit(main(parser.parse_args(), run))
