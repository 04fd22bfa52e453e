"""Browser windows, each in a context of its own, used again by later tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize

from .served import HEADER
from .watching import Watch

#: Milliseconds that a person waits for something to appear.
PATIENCE = 8_000

SIZE: ViewportSize = {"width": 1280, "height": 800}


@dataclass
class _Taken:
    kind: str
    page: Page
    leave: Callable[[], None]
    fresh: bool


class Windows:
    """Open windows, as many of a kind as a test needs at once.

    The page keeps nothing in the browser, so a window tells nothing of the test before.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, list[Page]] = {}
        self._taken: list[_Taken] = []

    def take(
        self, visitor: str, watch: Watch, *, fresh: bool, javascript: bool = True, **options: Any
    ) -> Page:
        """Return a window of somebody, which is watched from now on.

        Args:
            fresh: it has never been used, nor will be again.
        """
        kind = repr((visitor, javascript, options))
        free = self._free.setdefault(kind, [])
        if free and not fresh:
            page = free.pop()
            page.set_viewport_size(SIZE)
            page.emulate_media(color_scheme="light")
        else:
            page = self._open(visitor, java_script_enabled=javascript, **options)
        self._taken.append(_Taken(kind, page, watch.follow(page.context), fresh))
        return page

    def give_back(self, *, keep: bool) -> None:
        """Take the windows of a test back; close those that nobody should use again."""
        for taken in self._taken:
            taken.leave()
            if keep and not taken.fresh:
                taken.page.goto("about:blank")  # it does not refresh itself any more
                self._free[taken.kind].append(taken.page)
            else:
                taken.page.context.close()
        self._taken.clear()

    def close(self) -> None:
        """Close all windows."""
        for pages in self._free.values():
            for page in pages:
                page.context.close()
        self._free.clear()

    def _open(self, visitor: str, **options: Any) -> Page:
        headers = {HEADER: visitor}
        context = self._browser.new_context(extra_http_headers=headers, viewport=SIZE, **options)
        context.set_default_timeout(PATIENCE)
        return context.new_page()
