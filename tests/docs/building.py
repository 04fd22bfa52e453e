"""Build the documentation site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"


def built_site() -> Path:
    """Build what has changed since the last build; return the site's folder."""
    build = sphinx(ROOT / "docs", SITE)
    assert build.returncode == 0, build.stderr
    return SITE


def sphinx(pages: Path, site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build a site; a warning fails the build."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--nitpicky", "--quiet"]
    doctrees = ["--doctree-dir", str(site) + "-doctrees"]
    return subprocess.run(
        [*command, *doctrees, *options, str(pages), str(site)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
