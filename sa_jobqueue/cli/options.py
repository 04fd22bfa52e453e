"""Options of commands, and their arguments.

The default of a parameter declares its option, which has the name of the parameter::

    @plain_command(targets)
    def sql(targets: tuple[str, ...], dialect: str = text("postgresql or sqlite.", required=True)):
        ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from math import isnan
from typing import Any, TypeAlias

import click

#: The longest time that an option takes, 31 years: every database can subtract it from today.
MOST_SECONDS = 1_000_000_000

#: Adds an option or an argument to a function.
Decorator: TypeAlias = Callable[[Any], Any]

targets: Decorator = click.argument("targets", metavar="MODULE[:QUEUE]...", nargs=-1, required=True)
target: Decorator = click.argument(
    "targets", metavar="MODULE[:QUEUE]", callback=lambda _, __, target: (target,)
)
keys: Decorator = click.argument("keys", metavar="[KEY]...", nargs=-1)


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        name: None: that of its parameter.
        settings: what click.option() is given.
    """

    name: str | None
    settings: dict[str, Any]

    def of(self, parameter: str) -> Decorator:
        """Make the option whose value a parameter gets."""
        name = self.name or "--" + parameter.replace("_", "-")
        return click.option(name, parameter, **self.settings)


def flag(says: str, name: str | None = None) -> Any:
    """Declare an option without a value."""
    return Option(name, {"is_flag": True, "help": says})


def text(says: str, metavar: str | None = "NAME", **settings: Any) -> Any:
    """Declare an option with a text."""
    return Option(None, {"metavar": metavar, "help": says, **settings})


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


#: What every command may be asked for.
COMMON = {
    "yes": flag("Do it without asking."),
    "full": flag("Print long texts whole, over several lines."),
    "as_json": flag("Print JSON.", "--json"),
}


def given(name: str) -> Any:
    """Return the value of an option or an argument of the running command; None: it has none."""
    return click.get_current_context().params.get(name)


def options_of(function: Callable[..., Any]) -> dict[str, Decorator]:
    """Make the options that the parameters of a function declare, by their names."""
    defaults = {name: it.default for name, it in signature(function).parameters.items()}
    return {name: it.of(name) for name, it in defaults.items() if isinstance(it, Option)}


def command_of(function: Any, *added: Decorator, **settings: Any) -> click.Command:
    """Make a command of a function, with these options and arguments."""
    for option in reversed(added):
        function = option(function)
    return click.command(cls=click.Command, **settings)(function)


def plain_command(*added: Decorator) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that gets these, and the values of options that it declares."""
    return lambda function: command_of(function, *added, *options_of(function).values())
