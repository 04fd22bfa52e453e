"""What ``python -m tests.chaos`` and ``python -m tests.clusters`` have in common.

The seed decides which faults are done in which order; when they hit is up to the machine. The
histories of a run with faults are kept, and their folder is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.chaos.verdict import Verdict
from tests.servers import ServerUnavailable
from tests.servers.errors import NotHere


def parser_of(name: str, described: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options of any run."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.{name}", description=described)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    every = "seconds from one fault to the next, on average; default: %(default)g"
    parser.add_argument("--every", type=float, default=0.4, help=every)
    rest = "players wait so many times longer between two polls or two inserts; default: 1"
    parser.add_argument("--rest", type=float, default=1, help=rest)
    parser.add_argument("--report", type=Path, help="a file for what is printed")
    return parser


def main(
    given: argparse.Namespace,
    run: Callable[[argparse.Namespace, Path, Callable[[str], None]], Verdict],
) -> int:
    """Run and print; return 1 if a fault was found.

    Args:
        run: is given a folder for the histories, and what prints lines before the verdict.
    """
    folder, told = Path(tempfile.mkdtemp(prefix="chaos-")), list[str]()

    def tell(line: str) -> None:
        """Print at once, so that a long run is seen to have begun."""
        told.append(line)
        print(line, flush=True)  # noqa: T201 - its purpose

    try:
        verdict = run(given, folder, tell)
    except (ServerUnavailable, NotHere) as error:
        sys.exit(str(error))
    for line in verdict.lines():
        tell(line)
    if given.report is not None:
        given.report.write_text("\n".join((*told, "")), encoding="utf-8")
    if verdict.faults:
        tell(f"The histories are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
