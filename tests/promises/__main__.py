"""Break each promise once, and see its tests fail: ``python -m tests.promises [WORD ..]``.

With words, only the promises whose texts have one of them are broken.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from .promises import PROMISES, Promise

ROOT = Path(__file__).parents[2]

#: What pytest ends with if tests have failed; any other code, such as that of no test, is no proof.
TESTS_FAILED = 1


def main(words: list[str]) -> int:
    """Break the promises; return 1 if one was not missed."""
    kept = [each for each in PROMISES if not words or any(word in each.text for word in words)]
    missed = 0
    for promise in kept:
        began = time.monotonic()
        failed = failed_tests(promise)
        missed += not failed
        verdict = "found by" if failed else "NOT FOUND by"
        named = failed[0] if failed else " ".join(promise.tests)
        print(f"{promise.text}\n    {verdict} {named} ({time.monotonic() - began:.0f} s)")  # noqa: T201 - a command
    print(f"{len(kept) - missed} of {len(kept)} broken promises were found")  # noqa: T201 - a command
    return bool(missed)


def failed_tests(promise: Promise) -> list[str]:
    """Break a promise in a copy of the checkout; return which of its tests fail."""
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored, dirs_exist_ok=True)
        for edit in promise.edits:
            path = copy / "sa_jobqueue" / edit.file
            path.write_text(path.read_text("utf-8").replace(edit.before, edit.after), "utf-8")
        options = ("-x", "-q", "-p", "no:cacheprovider", "--db", "postgresql")
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *promise.tests],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode not in (0, TESTS_FAILED):
        raise SystemExit(f"{promise.text}\n{ran.stdout}{ran.stderr}")
    return [
        line.split()[1] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
