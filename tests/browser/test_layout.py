"""How every page looks, is heard and is reached: narrow, wide, light, dark, by the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from .conftest import SIZE, Open
from .contrast import CONTRAST, texts
from .people import go as go_to
from .people import overhang
from .places import PLACES, filled
from .watching import Watch

pytestmark = pytest.mark.only_on("postgresql")

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

#: Roles that have no use without a name.
NAMED = {
    *("button", "link", "textbox", "searchbox", "spinbutton", "checkbox", "combobox"),
    *("image", "img", "table", "navigation"),
}

#: What Tab should reach.
CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"

#: Puts the focus before everything else.
BEGIN = "() => { document.body.tabIndex = -1; document.body.focus() }"

#: Has the page believe that nobody sees it: what has the focus would be replaced by a refresh.
STAY = "() => { Object.defineProperty(document, 'hidden', { value: true }) }"

#: Says where the focus is, and how it looks.
FOCUS = (
    f"() => {{ {CONTRAST}"
    + """
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element), area = element.getBoundingClientRect();
  return {
    number: [...document.querySelectorAll("*")].indexOf(element),
    what: element.outerHTML.slice(0, 120),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    contrast: contrast(style.outlineColor, [getComputedStyle(document.body).backgroundColor]),
    inside: area.right > 0 && area.left < innerWidth && area.bottom > 0 && area.top < innerHeight,
  };
}"""
)


@pytest.fixture
def page(visit: Open, engine: Engine) -> Iterator[Page]:
    """The page, in whose queues is something of everything."""
    with filled(engine):
        yield visit("/workers")  # a page that costs little


def press_tab_until_the_end(page: Page) -> Iterator[dict[str, Any]]:
    """Yield what has the focus after each Tab, until it has left the page."""
    for _ in range(500):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        if focus is None:
            return
        yield focus
    raise AssertionError("Tab does not come to an end")


@pytest.mark.timeout(400)
def test_each_page_is_for_every_screen_every_ear_and_the_keyboard(page: Page, watch: Watch) -> None:
    watch.expect("404 .*|answered 404: .*/queues/nothing")
    for name, go in PLACES.items():
        page.set_viewport_size(SIZE)
        page.emulate_media(color_scheme="light")
        go(page)

        assert_every_control_is_reached(page)
        assert_it_can_be_heard(page)
        assert_axe_finds_nothing(page, name)
        assert_it_fits_and_can_be_read(page, name)


def assert_axe_finds_nothing(page: Page, name: str) -> None:
    """Run axe, which knows the rules of WCAG and more, wide and narrow, by day and by night."""
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page).response["violations"]
            told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
            assert told == [], (name, width, scheme)


def assert_it_fits_and_can_be_read(page: Page, name: str) -> None:
    """Check that no screen scrolls sideways, nor a phone's table, and that no text is faint."""
    assert overhang(page) == {1280: 0, 768: 0, 360: 0}, name
    for width in (1280, 360):  # a tablet has the layout of a phone
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found = texts(page)
            assert len(found) > 5
            assert [each for each in found if each[1] < each[2]] == [], (width, scheme)
    wide = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.locator(".scroll").evaluate_all(wide) == 0, name


def assert_it_can_be_heard(page: Page) -> None:
    """Check names, headings, and the headers of tables."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] in NAMED
        and not node.get("name", {}).get("value", "").strip()
    ]
    markup = page.evaluate(
        """() => {
          const all = selector => [...document.querySelectorAll(selector)];
          const ids = all("[id]").map(each => each.id);
          return {
            headings: all("h1").length,
            language: document.documentElement.lang,
            title: document.title.length > 10,
            mains: all("main").length,
            headers: all("th:not([scope=row], [scope=col])").map(each => each.outerHTML),
            twice: ids.filter((id, place) => ids.indexOf(id) !== place),
            inline: all("[style], style, script:not([src]), [onclick]").length,
          };
        }"""
    )

    assert nameless == []
    assert markup == {
        "headings": 1,
        "language": "en",
        "title": True,
        "mains": 1,
        "headers": [],
        "twice": [],
        "inline": 0,
    }


def assert_every_control_is_reached(page: Page) -> None:
    """Check that Tab comes to each control, and that each shows the focus."""
    page.evaluate(STAY)
    page.evaluate(BEGIN)
    wanted = page.evaluate(
        """selector => {
          const all = [...document.querySelectorAll("*")];
          const seen = each => each.getClientRects().length;
          const found = [...document.querySelectorAll(selector)].filter(seen);
          return Object.fromEntries(found.map(each => [all.indexOf(each), each.outerHTML]));
        }""",
        CONTROLS,
    )

    reached = list(press_tab_until_the_end(page))

    missed = {int(number) for number in wanted} - {focus["number"] for focus in reached}
    assert [wanted[str(number)] for number in missed] == []
    assert [focus["what"] for focus in reached if not focus["inside"]] == []
    # An outline of 3:1 against the page: WCAG 2.4.7 and 1.4.11.
    unseen = [each for each in reached if each["outline"] < 1 or each["contrast"] < 3]
    assert [focus["what"] for focus in unseen] == []


def test_the_first_tab_is_a_link_over_the_navigation(page: Page) -> None:
    go_to(page, "/")
    skip = page.get_by_role("link", name="Skip to the content")

    page.keyboard.press("Tab")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")

    expect(page.get_by_role("link", name="emails: 53 failed", exact=True)).to_be_focused()
