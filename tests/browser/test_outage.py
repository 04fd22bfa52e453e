"""The database or the server goes away and comes back: the last page stays, and it recovers."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect
from sqlalchemy.orm import Session

from tests.web.conftest import add
from tests.web.models import Email

from .conftest import Open
from .watching import Watch


def answer_503(route: Route) -> None:
    """Answer as the page does while its database is away."""
    route.fulfill(status=503, body="The database does not answer")


def refuse(route: Route) -> None:
    """Be no server."""
    route.abort("connectionrefused")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("away", [answer_503, refuse])
def test_the_last_figures_stay_while_nobody_answers(
    visit: Open, session: Session, watch: Watch, away: object
) -> None:
    add(session, Email(id=1), Email(id=2))
    watch.expect("503", "net::ERR_CONNECTION_REFUSED")
    page = visit()
    banner = page.get_by_text("The database or the server does not answer.")
    due = page.get_by_role("row").nth(1).get_by_role("cell").first
    expect(banner).to_be_hidden()

    page.route("**/*", away)  # type: ignore[arg-type]  # one of the functions above
    expect(banner).to_be_visible()
    kept = due.inner_text(), page.title()
    add(session, Email(id=3))
    page.unroute("**/*")

    expect(banner).to_be_hidden()
    expect(due).to_have_text("3")
    assert kept == ("2", "Queues · sa_jobqueue")
