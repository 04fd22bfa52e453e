"""Workers under faults: ``python -m tests.chaos --database postgresql --seconds 60``.

The seed decides which faults are done in which order; when they hit is up to the machine. The
histories of a run with faults are kept, and their folder is printed.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.storm import Storm
from tests.chaos.verdict import judge
from tests.servers import DATABASES, ServerUnavailable, provide


def main() -> int:
    """Run, judge and print; return 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    try:
        server = provide(given.database)
    except ServerUnavailable as error:
        sys.exit(str(error))
    name, folder = f"sa_jobqueue_{secrets.token_hex(4)}", Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"{server.version}, {given.seconds:g} s, seed {given.seed}")  # noqa: T201 - its purpose
    try:
        storm = Storm(server.create_database(name), folder, given.seconds, given.seed)
        storm.run()
        verdict = judge(storm)
    finally:
        server.drop_database(name)
        server.stop()
    print("\n".join(verdict.lines()))  # noqa: T201 - its purpose
    if verdict.faults:
        print(f"The histories are in {folder}")  # noqa: T201 - its purpose
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
