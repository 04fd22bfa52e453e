"""The README's code runs, and its links lead to files here.

The package index shows the README, where a relative link leads nowhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from .markdown import ROOT, code_blocks, page

README = page("README.md")

#: The targets of links and images.
LINKS = re.findall(r"\]\(([^)\s]+)\)", README)


def addresses() -> dict[str, str]:
    """Return the project's addresses by their names in setup.cfg."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup["metadata"]["project_urls"].strip().splitlines()
    return dict(line.split(" = ") for line in lines)


def file_of(link: str) -> str:
    """Return the path in the checkout of the file that a link shows, with its anchor."""
    source, site = addresses()["Source"], addresses()["Documentation"]
    raw = source.replace("//github.com/", "//raw.githubusercontent.com/")
    for begin in (f"{source}/blob/main/", f"{raw}/main/"):
        if link.startswith(begin):
            return link.removeprefix(begin)
    if link.startswith(f"{site}/en/latest/"):
        return "docs/" + link.removeprefix(f"{site}/en/latest/").replace(".html", ".md", 1)
    raise ValueError(f"{link} leads neither to the repository nor to the site of setup.cfg")


def anchors(markdown: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", markdown, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    for link in LINKS:
        path, _, anchor = file_of(link).partition("#")
        assert (ROOT / path).exists(), link
        assert not anchor or anchor in anchors(page(path)), link


def test_the_code_of_the_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text("\n".join(code_blocks(README, "python")), encoding="utf-8")

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "to anna@example.org",
    ]
