"""Chromium: the browser of the tests of the page, found on the machine or installed from Debian.

It is no database, so no provider; Playwright's own browsers are downloaded from elsewhere, and need
packages of the system as well.
"""

from __future__ import annotations

import subprocess
import sys

from tests.servers import debian

PACKAGE = "chromium"

#: What the node in Playwright's wheel is linked with, and a slim system lacks.
LIBRARY_OF_NODE = "libatomic1"


def chromium() -> str:
    """Return the path of the browser.

    Raises:
        NotHere: there is none, and none can be installed.
    """
    # Without recommended packages there would be no font for other languages and for code.
    return debian.find(PACKAGE, PACKAGE, "fonts-dejavu-core")


def make_playwright_run() -> None:
    """Install what Playwright's node lacks, if it does not run.

    Raises:
        NotHere: it does not run, and nothing can be installed.
    """
    command = [sys.executable, "-m", "playwright", "--version"]
    if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        debian.install(LIBRARY_OF_NODE)
