"""Ctrl-C and SIGTERM stop gently; the second one stops at once."""

from __future__ import annotations

import signal

from ..worker.signals import handled

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Whether we were asked to stop; true or false like a bool, within its ``with`` block."""

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def __enter__(self) -> Stopping:
        self._handling = handled(self._ask, *SIGNALS)
        self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)

    def _ask(self, *_: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
