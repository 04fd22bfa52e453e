"""All steps of a release but the upload: ``tox -e release``.

The wheel and the sdist are built, looked into and installed, in fresh environments of each Python
on PATH; a worker of an older version works beside one of this. The files stay in dist.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from sa_jobqueue import __version__

from .building import ROOT, STAY, run

DIST = ROOT / "dist"

TESTS = (*("-ra", "--durations=5"), *("tests/packaging", "tests/crash/test_two_versions.py"))


def main() -> None:
    """Make and check the files of a release, or say what has to be done first."""
    if changed := run("git", "status", "--porcelain", cwd=ROOT):
        sys.exit(f"commit first what a release would leave out:\n{changed}")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    if newest is None or newest[1] != __version__:
        sys.exit(f"CHANGELOG.md has to begin with {__version__}, the version of version.py")
    shutil.rmtree(DIST, ignore_errors=True)

    check("pytest", *TESTS)
    files = [str(file) for file in sorted(DIST.iterdir())]
    check("twine", "check", "--strict", *files)
    check("check_wheel_contents", files[0])

    listed = "\n".join(files)
    tag = f"git tag v{__version__} && git push origin v{__version__}"
    print(f"\nReady:\n{listed}\nRelease them by one of:\n{tag}\ntwine upload dist/*")  # noqa: T201 - a command


def check(module: str, *arguments: str) -> None:
    """Run a tool; end with its exit code if it finds something."""
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, STAY: str(DIST)}, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
