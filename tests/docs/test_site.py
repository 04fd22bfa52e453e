"""The documentation site: it builds without a warning, loads nothing from elsewhere, and is found.

``tox -e docs`` runs these tests; they need the extra ``docs``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

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


def test_the_site_stays_short() -> None:
    words = sum(len((DOCS / f"{name}.md").read_text().split()) for name in {*PAGES, "index"})

    assert len(PAGES) + 1 <= 40
    assert words <= 38_000


def test_llms_txt_has_a_line_for_each_page(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")

    listed = re.findall(r"^- \[.+\]\(https://[^/]+/en/latest/(\S+)\.html\): \S.*$", text, re.M)
    assert sorted(listed) == sorted(PAGES)


#: What people type, and the page that helps them.
SOUGHT = {
    "alembic": "migrations",
    "alert": "production",
    "asyncio": "asyncio",
    "at least once": "promises",
    "autoscale": "production",
    "background job": "index",
    "backoff": "retries",
    "backup": "production",
    "bulk insert": "bulk",
    "cancel": "control",
    "Celery": "coming-from",
    "chain": "groups",
    "chord": "groups",
    "concurrency": "worker",
    "connection pool": "production",
    "cron": "schedules",
    "dashboard": "web",
    "dead letter": "retries",
    "deadlock": "databases",
    "debounce": "unique",
    "deduplicate": "unique",
    "delay": "schedules",
    "Django": "web",
    "Docker": "production",
    "encrypt": "recipes",
    "exactly once": "exactly-once",
    "fan out": "recipes",
    "FastAPI": "tutorial",
    "FIFO": "order",
    "Flask": "tutorial",
    "graceful shutdown": "worker",
    "healthcheck": "production",
    "idempotent": "exactly-once",
    "KEDA": "production",
    "Kubernetes": "production",
    "liveness probe": "production",
    "logging": "reference/observing",
    "monitoring": "observability",
    "NOTIFY": "worker",
    "OpenTelemetry": "observability",
    "pause": "control",
    "periodic": "schedules",
    "PgBouncer": "databases",
    "priority": "own-table",
    "progress": "groups",
    "Prometheus": "observability",
    "rate limit": "limits",
    "result": "tasks",
    "retention": "production",
    "retry": "retries",
    "Sentry": "production",
    "sharding": "scaling",
    "SKIP LOCKED": "coming-from",
    "slow": "doctor",
    "stuck": "control",
    "systemd": "production",
    "tenant": "scaling",
    "test": "testing",
    "timeout": "worker",
    "trigger": "recipes",
    "webhook": "workflows",
    "workflow": "workflows",
}

#: As the search of Sphinx counts them: a word in a text, and in a heading.
TERM, TITLE = 5, 15


def found(index: dict[str, Any], query: str) -> Counter[str]:
    """Return the pages that a search finds, with their scores."""
    from sphinx.search.en import SearchEnglish

    language, scores = SearchEnglish({}), []
    for word in re.findall(r"\w+", query.lower()):
        if word not in language.stopwords:
            term = language.stem(word)
            pages = dict.fromkeys(_numbers(index["terms"], term), TERM)
            pages.update(dict.fromkeys(_numbers(index["titleterms"], term), TITLE))
            scores.append(pages)
    everywhere = set.intersection(*map(set, scores))
    best = {page: max(pages[page] for pages in scores) for page in everywhere}
    for title, places in index["alltitles"].items():
        if query.lower() in title.lower():
            best.update({page: TITLE + 1 for page, _ in places})
    return Counter({index["docnames"][page]: score for page, score in best.items()})


def _numbers(terms: dict[str, Any], term: str) -> list[int]:
    pages = terms.get(term, [])
    return pages if isinstance(pages, list) else [pages]


def test_the_search_finds_what_people_type(site: Path) -> None:
    """The page is among the best five, or among those whose headings have the words."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])

    missed = {
        query: scores.most_common(5)
        for query, page in SOUGHT.items()
        if (scores := found(index, query))[page] == 0
        or sum(score > scores[page] for score in scores.values()) >= 5
    }

    assert len(SOUGHT) >= 50
    assert missed == {}
