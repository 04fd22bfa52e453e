"""Whether a handler has to be awaited: what its function tells before the first call."""

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

    A decorator's function around an ``async def`` is not known to be plain, and no object is:
    both may return something to be awaited.
    """
    function = _function_of(handler)
    return isfunction(function) and not iscoroutinefunction(unwrap(function))


def _function_of(handler: Callable[..., Any]) -> Any:
    """Return what a partial or a method calls in the end."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler.__func__ if ismethod(handler) else handler
