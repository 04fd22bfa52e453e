"""The documentation site: it builds without a warning, and loads nothing from elsewhere.

``tox -e docs`` runs these tests; they need the extra ``docs``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .building import ROOT, built_site

pytestmark = [pytest.mark.xdist_group("site"), pytest.mark.timeout(600)]

#: What a browser fetches by itself: scripts, styles, pictures and fonts.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|embed|object)\b[^>]*?\b(?:src|srcset|data)="([^"]+)"
    |<link\b(?=[^>]*\brel="(?:stylesheet|icon|preload|prefetch|preconnect|dns-prefetch)")
     [^>]*\bhref="([^"]+)"
    |\burl\(\s*["']?([^"')]+)
    |@import\s+["']([^"']+)""",
    re.X,
)
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.I)


DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in DOCS.rglob("*.md")
    if path.parent.name != "internals"
}
PAGES -= {"index"}


@pytest.fixture(scope="session")
def site() -> Path:
    """The built site."""
    return built_site()


def test_no_page_fetches_anything_from_another_host(site: Path) -> None:
    files = [file for end in ("html", "css", "svg") for file in site.rglob(f"*.{end}")]

    fetched = {
        (file.name, next(filter(None, groups)))
        for file in files
        for groups in FETCHED.findall(file.read_text(encoding="utf-8"))
    }

    assert len(files) > 50
    assert len(fetched) > 50
    assert {found for found in fetched if ELSEWHERE.match(found[1])} == set()


def test_every_page_is_reached_from_the_first(site: Path) -> None:
    sidebar = (site / "index.html").read_text(encoding="utf-8")

    assert {name for name in PAGES if f'href="{name}.html"' not in sidebar} == set()


def test_llms_txt_has_a_line_for_each_page(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")

    listed = re.findall(r"^- \[.+\]\(https://[^/]+/en/latest/(\S+)\.html\): \S.*$", text, re.M)
    assert sorted(listed) == sorted(PAGES)
