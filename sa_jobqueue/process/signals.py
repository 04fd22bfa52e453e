"""Signal handlers for the length of a ``with`` block; Python sets them in the main thread only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
def first_signal_stops(stop: Callable[[], None], *signals: signal.Signals) -> Iterator[None]:
    """Have the first signal call `stop`, and the next one do what it did before."""
    before = {number: signal.getsignal(number) for number in signals}

    def stop_once(number: int, frame: Any) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop()

    with signals_handled(stop_once, *signals):
        yield


def raises_keyboard_interrupt() -> bool:
    """Tell whether Ctrl-C would raise KeyboardInterrupt in this thread."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
