"""How options are declared: each is the default of a parameter, which names it.

::

    @plain_command(TARGETS)
    def list_some(targets: tuple[str, ...], limit: int = number("At most N.", default=20)) -> None:
        ...

A function gets the values that it has parameters for; :func:`given` returns all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from inspect import signature
from math import isnan
from typing import Any

import click

#: The longest time that an option takes, 31 years: every database can subtract it from today.
MOST_SECONDS = 1_000_000_000


class Option(dict[str, Any]):
    """An option without its name: what click.Option() is given."""

    def named(self, parameter: str, *others: str) -> click.Option:
        """Make the option whose value a parameter gets; it may have other names."""
        return click.Option([f"--{parameter.replace('_', '-')}", *others], **self)


def flag(says: str) -> Any:
    """Declare an option without a value."""
    return Option(is_flag=True, help=says)


def text(says: str, metavar: str | None = "NAME", **settings: Any) -> Any:
    """Declare an option with a text."""
    return Option(metavar=metavar, help=says, **settings)


def number(says: str, *, least: int = 1, most: int = 2**31 - 1, **settings: Any) -> Any:
    """Declare an option with a number, by default from 1 to the largest that databases take."""
    return text(says, "N", type=click.IntRange(least, most), **settings)


def seconds(
    says: str, default: timedelta | None = None, *, zero: bool = False, **settings: Any
) -> Any:
    """Declare an option of so many seconds, perhaps 0; its value is a timedelta, or None."""
    settings["default"] = default and default.total_seconds()
    kind = click.FloatRange(0, MOST_SECONDS, min_open=not zero)
    return text(says, "SECONDS", type=kind, callback=_as_timedelta, **settings)


def _as_timedelta(_context: object, _option: object, number: float | None) -> timedelta | None:
    if number is not None and isnan(number):
        raise click.BadParameter("it is no number.")
    return None if number is None else timedelta(seconds=number)


def given(name: str) -> Any:
    """Return the value of an option or an argument of the running command; None: it has none."""
    return click.get_current_context().params.get(name)


def plain_command(*others: click.Parameter) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function, with the options that it declares, and with others."""

    def declare(function: Callable[..., Any]) -> click.Command:
        known = signature(function).parameters
        own = [
            it.default.named(name) for name, it in known.items() if isinstance(it.default, Option)
        ]

        @wraps(function)
        def run(**values: Any) -> None:
            function(**{name: value for name, value in values.items() if name in known})

        return click.command(params=[*own, *others])(run)

    return declare
