"""The documentation site: it builds without a warning, and loads nothing from elsewhere.

``tox -e docs`` runs these tests; they need the extra ``docs``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sa_jobqueue import TRANSITIONS, JobStatus

from .building import ROOT, built_site, sphinx
from .markdown import page

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

#: Broken links, and what the warning names.
BROKEN_LINKS = {
    "[a page that does not exist](no-page.md)": "no-page.md",
    "[a heading that does not exist](#no-heading)": "no-heading",
    "[a heading that another page does not have](worker.md#nor-here)": "nor-here",
    "[a file that does not exist](../examples/no-file.py)": "../examples/no-file.py",
    "![a picture that does not exist](images/no-picture.png)": "no-picture.png",
}


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


def test_links_to_files_of_the_repository_lead_to_the_repository(site: Path) -> None:
    text = (site / "schedules.html").read_text(encoding="utf-8")

    assert '/sa_jobqueue/blob/main/examples/12_schedule.py"' in text


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "worker.md").write_text("# The worker\n", encoding="utf-8")
    tree = "```{toctree}\nworker\n```"
    (pages / "index.md").write_text(
        "\n\n".join(["# A page", *BROKEN_LINKS, tree, ""]), encoding="utf-8"
    )

    build = sphinx(pages, tmp_path / "site", "-c", str(DOCS), "--keep-going")

    warnings = re.findall(r"WARNING: (.*)", build.stderr)
    assert build.returncode == 1
    assert len(warnings) == len(BROKEN_LINKS)
    for target in BROKEN_LINKS.values():
        assert any(target in warning for warning in warnings)


def test_the_drawn_life_of_a_job_has_the_changes_of_the_code() -> None:
    drawing = page("docs/images/job-life.svg")

    drawn = {tuple(found.split()) for found in re.findall(r'data-change="([^"]+)"', drawing)}

    changes = {
        (before.value, after.value, verb)
        for verb, pairs in TRANSITIONS.items()
        for before, after in pairs
    }
    assert drawn <= changes
    assert {change for change in changes - drawn if change[0] == "claimed"} == {
        ("claimed", "failed", "reap")
    }
    assert set(re.findall(r'data-status="(\w+)"', drawing)) == set(JobStatus)


def test_the_recording_shows_a_dead_worker_and_ends_with_all_jobs_done() -> None:
    recording = page("docs/images/recording.svg")

    frames = recording.split('<g class="f ')[1:]

    assert any("1 dead" in frame for frame in frames)
    assert "1 dead" not in frames[0]
    assert "done|300" in frames[-1]
