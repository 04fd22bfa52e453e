"""Judge the histories that a Ledger has recorded: ``python -m tests.evidence history.jsonl``.

The exit code is 0 if every promise was kept, 1 if not, and 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

from .checker import check
from .history import History


def main() -> int:
    """Print the faults of a run as stories, and count them."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="give all files of the run")
    parser.add_argument("--drained", action="store_true", help="report jobs without an end as lost")
    skew = "how many seconds the clocks of the processes and of the database may differ"
    parser.add_argument("--skew", type=float, default=1.0, help=skew)
    steps = "the database's clock was stepped: order claims by the clocks of the processes"
    parser.add_argument("--clock-steps", action="store_true", help=steps)
    given = parser.parse_args()
    try:
        skewed = timedelta(seconds=given.skew)
        history = History.read(*given.files, skew=skewed, clock_steps=given.clock_steps)
    except ValueError as error:
        parser.error(str(error))
    faults = list(check(history, drained=given.drained))
    told = [line for fault in faults[:10] for line in fault.story()]
    told.append(f"{len(history.records)} events of {len(history.rows)} rows: {len(faults)} faults")
    sys.stdout.write("\n".join(told) + "\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
