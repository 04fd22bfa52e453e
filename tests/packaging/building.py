"""Build the wheel and the sdist from a lived-in copy of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: In the environment: the folder in which a release leaves what it has built and looked into.
STAY = "SA_JOBQUEUE_DIST"

#: What a checkout holds; the rest are caches, environments and git's own.
FOLDERS = (*(".ci", "alembic", "benchmarks", "docs", "examples", "model", "sa_jobqueue", "tests"),)
FILES = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md"),
    *("alembic.ini", "pyproject.toml", "ruff.toml", "setup.cfg", "tox.ini"),
)

#: Files that work leaves behind; none may be packed.
LITTER = (
    *("sa_jobqueue/__pycache__/queue.cpython-311.pyc", "tests/__pycache__/support.cpython-311.pyc"),
    *("alembic/__init__.py", "alembic/versions/__pycache__/0001_queues.cpython-311.pyc"),
    *("build/lib/sa_jobqueue/old.py", "dist/old.whl", "model/node_modules/index.js"),
    *(".servers/mysql/module.py", ".venv/lib/module.py", ".tox/sa21/module.py"),
    *("jobs.db", "examples/jobs.db", "tests/jobs.db-wal", ".mypy_cache/cache.json"),
)

NOT_OURS = shutil.ignore_patterns("__pycache__", "*.db", "*.db-*", "node_modules")


@dataclass(frozen=True, kw_only=True)
class Built:
    """The files that a build made, and its output."""

    wheel: Path
    sdist: Path
    said: str


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Run a command as a user would, without this run's settings; return its output."""
    settings = {name for name in os.environ if name.startswith("PY")}
    if os.environ.get("SSL_CERT_FILE") == os.devnull:
        settings.add("SSL_CERT_FILE")
    finished = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == code, finished.stdout
    return finished.stdout
