"""Workers under faults: ``python -m tests.chaos --database postgresql --seconds 60``.

The seed decides which faults are done in which order; when they hit is up to the machine. The
histories of a run with faults are kept, and their folder is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.ground import FAULTS, ground
from tests.chaos.pace import Pace
from tests.chaos.storm import Storm
from tests.chaos.verdict import judge
from tests.servers import DATABASES, ServerUnavailable


def main() -> int:
    """Run, judge and print; return 1 if a fault was found."""
    given = parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        found = run(given, folder)
    except ServerUnavailable as error:
        sys.exit(str(error))
    if found:
        tell(f"The histories are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    described = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    described.add_argument("--database", choices=DATABASES, required=True)
    described.add_argument("--seconds", type=float, default=60)
    described.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    described.add_argument(
        "--faults", type=listed, default=FAULTS, help=f"of {','.join(FAULTS)}; default: all"
    )
    Pace.add_options(described)
    return described


def listed(text: str) -> tuple[str, ...]:
    """Read names that are divided by commas."""
    names = tuple(text.split(","))
    if unknown := set(names).difference(FAULTS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def run(given: argparse.Namespace, folder: Path) -> bool:
    """Run and print; tell whether a fault was found."""
    with ground(given.database, given.faults) as (made, url):
        tell(f"{given.database} {made.version}, {given.seconds:g} s, seed {given.seed}")
        for why in made.left_out:
            tell(f"left out: {why}")
        storm = Storm(url, folder, given.seconds, given.seed, made.faults, made.far, made.clock)
        storm.pace = Pace.given(given)
        storm.run()
        verdict = judge(storm)
    tell("\n".join(verdict.lines()))
    return bool(verdict.faults)


def tell(line: str) -> None:
    """Print at once, so that a long run is seen to have begun."""
    print(line, flush=True)  # noqa: T201 - its purpose


if __name__ == "__main__":
    sys.exit(main())
