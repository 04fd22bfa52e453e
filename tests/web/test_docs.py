"""docs/web.md: its application runs, and its table of pages is that of the routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from starlette.testclient import TestClient

from tests.docs.markdown import code_blocks, page
from tests.support import make_engine

PAGE = page("docs/web.md")
(SHOP,) = code_blocks(PAGE, "python")


@pytest.fixture
def shop(fresh_database: URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The application of the page, on a database with its tables."""
    pytest.importorskip("fastapi")
    url = fresh_database.render_as_string(hide_password=False)
    monkeypatch.setenv("DATABASE_URL", url)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(SHOP, "shop.py", "exec", dont_inherit=True), names)
    engine: Engine = make_engine(url)
    names["Base"].metadata.create_all(engine)
    yield TestClient(names["app"], headers={"Sec-Fetch-Site": "same-origin"})
    names["engine"].dispose()
    engine.dispose()


@pytest.mark.only_on("sqlite")
def test_the_application_of_the_page_lets_in_whom_it_says(shop: TestClient) -> None:
    pause = {"verb": "pause"}

    seen = {
        name: shop.get("/admin/jobs/", headers={"x-user": name}) for name in ("ann", "bo", "cy")
    }
    changed = {
        name: shop.post("/admin/jobs/queues/shop_email", data=pause, headers={"x-user": name})
        for name in ("bo", "ann")
    }

    assert [answer.status_code for answer in seen.values()] == [200, 200, 403]
    assert shop.get("/admin/jobs/").status_code == 403
    assert 'href="/admin/jobs/queues/shop_email"' in seen["bo"].text
    assert changed["bo"].status_code == 403
    assert "paused" in changed["ann"].text
