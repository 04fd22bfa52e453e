"""Ctrl-C and SIGTERM: the first stops gently, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..process.signals import signals_handled

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Receive the signals that ask a command to stop, within its ``with`` block.

    Attributes:
        received: whether the first signal has come.
    """

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> StopSignals:
        self._handling = signals_handled(self._receive, *SIGNALS)
        self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)

    def _receive(self, *_: object) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True


@contextmanager
def stopped_by_signals(stop: Callable[[], None], *signals: signal.Signals) -> Iterator[None]:
    """Have the first of these signals call `stop`, and the next one end the process at once.

    A KeyboardInterrupt would not do: whatever runs may take its time over it.
    """

    def stop_once(*_: object) -> None:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        stop()

    with signals_handled(stop_once, *signals):
        yield
