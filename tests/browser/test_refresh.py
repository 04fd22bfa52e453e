"""The page refreshes itself and leaves alone what somebody reads or writes; it waits for ticks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Request, Route, expect
from sqlalchemy.orm import Session

from tests.web.conftest import LONG_AGO, add, failed
from tests.web.models import Email

from .conftest import Open
from .people import title
from .watching import Watch

pytestmark = pytest.mark.only_on("postgresql")

#: Milliseconds between two refreshes, and a little.
REFRESH = 3_100


def keys(page: Page) -> list[str]:
    """Return the keys of the jobs that are listed."""
    return page.get_by_role("rowheader").all_inner_texts()


def requests_while(page: Page, act: Callable[[], None]) -> list[str]:
    """Return which addresses the script of a page asks for meanwhile."""
    seen: list[str] = []

    def note(request: Request) -> None:
        if request.resource_type == "fetch":
            seen.append(request.url)

    page.on("request", note)
    act()
    page.wait_for_timeout(200)  # a request is told a moment later
    page.remove_listener("request", note)
    return seen


def refresh(page: Page) -> None:
    """Let the time of a refresh pass, and wait until it has been shown."""
    with page.expect_response(lambda answer: answer.request.resource_type == "fetch"):
        page.clock.run_for(REFRESH)
    page.evaluate("() => new Promise(done => done())")


def test_a_new_job_appears_without_a_reload(visit: Open, session: Session) -> None:
    add(session, failed(1))
    page = visit("/queues/emails")
    page.evaluate("() => { window.same = true }")
    expect(page.get_by_role("rowheader")).to_have_text(["1"])

    add(session, failed(2), Email(id=3))

    expect(page.get_by_role("rowheader")).to_have_text(["2", "1"])
    expect(page.locator("#tab-due .count")).to_have_text("1")
    assert page.evaluate("() => window.same")


@pytest.mark.parametrize("path", ["/doctor", "/previews/emails?verb=retry&key=1"])
def test_a_page_that_is_dear_or_asks_something_stays_as_it_is(
    visit: Open, session: Session, path: str
) -> None:
    add(session, failed(1))
    page = visit(path, clock=True)

    assert requests_while(page, lambda: page.clock.run_for(10 * REFRESH)) == []
    expect(page.locator("#live")).to_be_hidden()


def test_what_somebody_types_and_where_stays(visit: Open, session: Session) -> None:
    add(session, failed(1))
    page = visit("/queues/emails", clock=True)
    field = page.get_by_label("Key of a job")
    field.fill("1234")
    field.evaluate("field => field.setSelectionRange(1, 3)")
    add(session, failed(2))

    refresh(page)

    expect(page.get_by_role("rowheader")).to_have_text(["2", "1"])
    expect(field).to_be_focused()
    expect(field).to_have_value("1234")
    assert field.evaluate("field => [field.selectionStart, field.selectionEnd]") == [1, 3]


def test_what_somebody_selects_and_scrolls_stays_while_the_rest_lives(
    visit: Open, session: Session
) -> None:
    error = "\n".join(f"line {number}" for number in range(200))
    add(session, failed(1, last_error=error, attempts=3))
    page = visit("/queues/emails/jobs/1", clock=True)
    shown = page.locator("#error")
    shown.evaluate("each => { each.scrollTop = 900 }")
    page.get_by_role("heading", name="Last error").select_text()
    session.get_one(Email, 1).attempts = 4
    session.commit()

    refresh(page)

    expect(page.get_by_text("4 of 20")).to_be_visible()
    assert shown.evaluate("each => each.scrollTop") == 900
    assert page.evaluate("() => getSelection().toString()") == "Last error"


def test_it_asks_with_the_tag_of_what_it_has(visit: Open, session: Session) -> None:
    add(session, failed(1, run_at=LONG_AGO))
    page = visit("/queues/emails/jobs/1", clock=True)
    statuses: list[int] = []
    fetched = "fetch"
    page.on(
        "response",
        lambda it: statuses.append(it.status) if it.request.resource_type == fetched else None,
    )

    for _ in range(3):
        refresh(page)

    assert statuses == [200, 304, 304]
    expect(title(page)).to_have_text("Job 1 ann failed")


def test_it_says_that_it_lives_and_that_it_has_stopped(visit: Open, session: Session) -> None:
    add(session, failed(1), failed(2))
    page = visit("/queues/emails", clock=True)
    live = page.locator("#live")
    page.clock.run_for(2_100)
    expect(live).to_have_text("live, 2 s ago")

    page.get_by_label("Tick all jobs of this page").check()

    expect(live).to_have_text("stopped while 2 jobs are ticked")
    expect(page.get_by_label("With the ticked jobs")).to_contain_text("With the 2 ticked jobs:")


def test_jobs_are_found_ticked_and_retried_by_keys(visit: Open, session: Session) -> None:
    add(session, *(failed(key) for key in (1, 2, 3)))
    page = visit("/queues/emails", clock=True)

    for key in "jjx":
        page.keyboard.press(key)
    expect(page.get_by_label("Tick job 2", exact=True)).to_be_checked()
    page.keyboard.press("k")
    page.keyboard.press("x")
    expect(page.get_by_label("Tick job 3", exact=True)).to_be_checked()
    page.keyboard.press("/")
    page.keyboard.type("xjr")
    expect(page.get_by_label("Key of a job")).to_have_value("xjr")
    page.get_by_label("Key of a job").blur()
    page.keyboard.press("r")

    expect(title(page)).to_have_text("Retry 2 jobs?")


def test_it_waits_while_a_box_is_ticked(visit: Open, session: Session) -> None:
    add(session, failed(1))
    page = visit("/queues/emails", clock=True)
    box = page.get_by_label("Tick job 1")
    box.check()
    box.blur()  # else the focus alone would keep the page
    add(session, failed(2))

    waited = requests_while(page, lambda: page.clock.run_for(10 * REFRESH))
    shown = keys(page), box.is_checked()
    box.uncheck()
    box.blur()
    refresh(page)

    assert waited == []
    assert shown == (["1"], True)
    expect(page.get_by_role("rowheader")).to_have_text(["2", "1"])


def test_a_box_that_is_ticked_while_the_answer_comes_stays_ticked(
    visit: Open, session: Session
) -> None:
    add(session, failed(1))
    page = visit("/queues/emails", clock=True)
    add(session, failed(2))
    box = page.get_by_label("Tick job 1")

    def tick_and_answer(route: object) -> None:
        box.evaluate("each => { each.checked = true }")
        route.continue_()  # type: ignore[attr-defined]  # it is a Route

    page.route("**/queues/emails", tick_and_answer)
    refresh(page)

    expect(box).to_be_checked()
    assert keys(page) == ["1"]


def test_the_focus_stays_where_it_is(visit: Open, session: Session) -> None:
    add(session, failed(1))
    page = visit("/queues/emails", clock=True)
    for name in ("Due", "Failed"):
        page.locator(f"#tab-{name.lower()}").focus()
        add(session, failed(10 + len(name)))

        refresh(page)

        expect(page.get_by_role("rowheader", name=str(10 + len(name)))).to_be_visible()
        expect(page.locator(f"#tab-{name.lower()}")).to_be_focused()


def test_the_place_to_which_somebody_has_scrolled_stays(visit: Open, session: Session) -> None:
    add(session, *(failed(key) for key in range(1, 51)))
    page = visit("/queues/emails", clock=True)
    page.mouse.wheel(0, 900)
    page.wait_for_function("() => scrollY > 500")
    before = page.evaluate("() => scrollY")

    refresh(page)

    assert page.evaluate("() => scrollY") == pytest.approx(before, abs=60)


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
    add(session, Email(id=1), Email(id=2, recipient="bo"))
    watch.expect("503", "net::ERR_CONNECTION_REFUSED")
    page = visit()
    banner = page.get_by_text("The database or the server does not answer.")
    due = page.get_by_role("row").nth(1).get_by_role("cell").first
    expect(banner).to_be_hidden()

    page.route("**/*", away)  # type: ignore[arg-type]  # one of the functions above
    expect(banner).to_be_visible()
    kept = due.inner_text(), page.title()
    add(session, Email(id=3, recipient="cy"))
    page.unroute("**/*")

    expect(banner).to_be_hidden()
    expect(due).to_have_text("3")
    assert kept == ("2", "Queues · sa_jobqueue")
