"""The pictures of docs/web.md: `pytest tests/browser/test_screenshots.py --screenshots` takes them.

Otherwise they go to a temporary folder, so that taking them cannot rot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import ViewportSize
from sqlalchemy import Engine

from tests.servers.given import REPOSITORY

from .conftest import Open
from .places import PLACES, filled
from .served import served

pytestmark = pytest.mark.only_on("postgresql")

IMAGES = REPOSITORY / "docs" / "images"

#: Bytes of a picture at most.
MOST = 150_000

LOW: ViewportSize = {"width": 1280, "height": 400}
COMPUTER: ViewportSize = {"width": 1280, "height": 800}
HIGH: ViewportSize = {"width": 1280, "height": 940}
PHONE: ViewportSize = {"width": 360, "height": 740}

Scheme = Literal["light", "dark"]


#: Each picture shows one of the places.
PICTURES: dict[str, tuple[str, ViewportSize, Scheme]] = {
    "web-overview": ("overview", LOW, "light"),
    "web-overview-dark": ("overview", LOW, "dark"),
    "web-queue": ("failed", HIGH, "light"),
    "web-queue-dark": ("failed", HIGH, "dark"),
    "web-workflow": ("workflow", COMPUTER, "light"),
    "web-job": ("failed job", COMPUTER, "light"),
    "web-preview": ("preview", LOW, "light"),
    "web-overview-phone": ("overview", PHONE, "light"),
    "web-queue-phone": ("failed", PHONE, "dark"),
}


@pytest.fixture
def address(engine: Engine) -> Iterator[str]:
    """The address of a page that was looked at for half an hour."""
    with filled(engine), served(engine.url, past=True) as address:
        yield address


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the pictures go."""
    return IMAGES if request.config.getoption("screenshots") else tmp_path


def test_a_picture_is_taken_of_each_page(visit: Open, folder: Path) -> None:
    page = visit()

    for name, (place, size, scheme) in PICTURES.items():
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        PLACES[place](page)
        page.evaluate("() => scrollTo(0, 0)")
        page.screenshot(path=folder / f"{name}.png")

    sizes = {path.name: path.stat().st_size for path in folder.glob("web-*.png")}
    assert set(sizes) == {f"{name}.png" for name in PICTURES}
    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def test_the_docs_show_each_picture(db_alias: str) -> None:
    shown = re.findall(
        r"!\[[^]]+\]\(images/([\w-]+)\.png\)", (REPOSITORY / "docs/web.md").read_text()
    )

    assert set(shown) == set(PICTURES) == {path.stem for path in IMAGES.glob("web-*.png")}
