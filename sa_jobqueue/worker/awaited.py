"""Tell from a handler's function, before the first call, whether it must be awaited."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction, isfunction, ismethod, unwrap
from typing import Any


def is_awaited(handler: Callable[..., Any]) -> bool:
    """Tell whether a handler is ``async def``, or an object whose ``__call__`` is."""
    function = _function_of(handler)
    call = None if isinstance(function, type) else function.__call__
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def is_plain(handler: Callable[..., Any]) -> bool:
    """Tell whether a handler is a function that is not ``async def``.

    A decorated function and a callable object are not known to be plain: both may return an
    awaitable.
    """
    function = _function_of(handler)
    return isfunction(function) and not iscoroutinefunction(unwrap(function))


def _function_of(handler: Callable[..., Any]) -> Any:
    """Return the function that a partial or a method finally calls."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler.__func__ if ismethod(handler) else handler
