"""Signal handlers that are there for a while; the main thread only, as everywhere in Python."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(handler: Callable[[int, Any], object], *signals: signal.Signals) -> Iterator[None]:
    """Have signals call a handler; afterwards, again what they called before."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handler_then in before.items():
            signal.signal(number, handler_then)


@contextmanager
def stopping_gently(stop: Callable[[], None], *signals: signal.Signals) -> Iterator[None]:
    """Have the first signal stop gently, and the next one do what it did before."""
    before = {number: signal.getsignal(number) for number in signals}

    def gently(number: int, frame: Any) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop()

    with handled(gently, *signals):
        yield


def ctrl_c_is_ours() -> bool:
    """Tell whether Ctrl-C would raise KeyboardInterrupt in this thread."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
