"""What a browser complains of: a fault on every page, unless the test has said that it comes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Request, Response, WebError

#: Errors of requests that the browser gives up by itself, since somebody went to another page.
LEFT = "net::ERR_ABORTED"


class Watch:
    """Collect what goes wrong in browser contexts.

    Args:
        origin: the only address that pages may ask.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._expected: list[str] = []
        self._seen: list[str] = []

    def follow(self, context: BrowserContext) -> None:
        """Collect from a context until it is closed."""
        listeners: dict[Any, Callable[[Any], None]] = {
            "console": self._note_message,
            "weberror": self._note_error,
            "dialog": self._note_dialog,
            "request": self._note_request,
            "requestfailed": self._note_failure,
            "response": self._note_response,
        }
        for event, listener in listeners.items():
            context.on(event, listener)

    def expect(self, *patterns: str) -> None:
        """Say what this test brings about: a regular expression of each complaint."""
        self._expected += patterns

    @property
    def faults(self) -> list[str]:
        """What nobody has expected."""
        return [
            fault
            for fault in self._seen
            if not any(re.search(pattern, fault) for pattern in self._expected)
        ]

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._seen.append(f"console {message.type}: {message.text}")

    def _note_error(self, error: WebError) -> None:
        self._seen.append(f"error of a script: {error.error}")

    def _note_dialog(self, dialog: Dialog) -> None:
        self._seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self._origin}/", "about:")):
            self._seen.append(f"request to another host: {request.url}")

    def _note_failure(self, request: Request) -> None:
        if request.failure != LEFT:
            self._seen.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _note_response(self, response: Response) -> None:
        if response.status >= 400:
            self._seen.append(f"answered {response.status}: {response.url}")
