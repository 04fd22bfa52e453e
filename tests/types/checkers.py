"""The type checkers, two at once, since each uses one core.

    python -m tests.types.checkers

Arguments are those of pytest. A checker that finds something does not keep the others from looking.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

PYRIGHT = ("pyright", "--pythonpath", sys.executable, "sa_jobqueue")


def main(*given: str) -> int:
    """Run all; return 1 if any has found something."""
    tests = ("pytest", "--db", "sqlite", "tests/types", *given)
    # Pyright installs itself when it first runs, so its tests come after it.
    one_by_one = ((("mypy",),), (PYRIGHT, tests))
    with ThreadPoolExecutor(len(one_by_one)) as threads:
        found = list(threads.map(lambda commands: [run(*each) for each in commands], one_by_one))
    return int(any(map(any, found)))


def run(*command: str) -> int:
    """Run a module of this environment, and print what it printed at its end."""
    ran = subprocess.run(
        (sys.executable, "-m", *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    tell(command, ran.stdout)
    return ran.returncode


def tell(command: Sequence[str], printed: str) -> None:
    """Print all of it at once, so that two commands do not mix."""
    sys.stdout.write(f"$ {' '.join(command)}\n{printed}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
