"""The package imports only what it needs, not what its extras or its neighbours need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

NOT_NEEDED = (
    *("alembic", "click", "cronsim", "cryptography", "psycopg2", "pymysql", "rich"),
    *("jinja2", "starlette", "uvicorn"),
)


def test_the_package_imports_sqlalchemy_and_nothing_else_that_is_installed() -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED!r}))"

    imported = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{hide}; import sa_jobqueue"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (imported.returncode, imported.stderr) == (0, "")
