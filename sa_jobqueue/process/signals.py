"""Signal handlers for the length of a ``with`` block; Python sets them in the main thread only."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: The signals that ask a command to stop.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_handled(
    handler: Callable[[int, Any], object], *signals: signal.Signals
) -> Iterator[None]:
    """Have signals call a handler; afterwards restore the handlers that they had before."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def first_signal_stops(
    stop: Callable[[], object],
    *signals: signal.Signals,
    then: Any = signal.default_int_handler,
) -> Iterator[None]:
    """Have the first of these signals call `stop`; by default the next raises KeyboardInterrupt.

    Args:
        signals: by default SIGINT and SIGTERM.
        then: the handler of the next signal.
    """
    chosen = signals or SIGNALS

    def stop_once(*_: object) -> None:
        for number in chosen:
            signal.signal(number, then)
        stop()

    with signals_handled(stop_once, *chosen):
        yield
