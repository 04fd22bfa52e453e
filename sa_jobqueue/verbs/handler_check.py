"""Whether a worker can call a handler: it is asked when the handler is declared.

A mistake in its arguments would otherwise cost each job all of its attempts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..process.name import function_name


def check_handler(handler: Callable[..., Any], *, transactional: bool) -> None:
    """Refuse what is no function, and functions with other arguments than a worker gives.

    Raises:
        ArgumentError: it says what the handler is called with.
    """
    if not callable(handler):
        raise ArgumentError(
            f"a handler is a function, not {handler!r}: write @queue.handler above it, or "
            "@queue.handler(timeout=..)"
        )
    try:
        # Not what a decorator has wrapped: the decorator may add arguments of its own.
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # built-in functions may have none
        return
    given = ("session", "job") if transactional else ("job",)
    try:
        signature.bind(*given)
    except TypeError as error:
        way = (
            "with transactional=True a handler gets a session and the job"
            if transactional
            else "a handler gets the job alone, and with transactional=True a session before it"
        )
        raise ArgumentError(
            f"{function_name(handler)} takes {signature}, and a worker calls it with "
            f"({', '.join(given)}): {error}; {way}"
        ) from error
