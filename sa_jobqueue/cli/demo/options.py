"""The options that ``demo`` and ``start-processing`` share."""

from __future__ import annotations

from typing import Any

import click

from ..options import Option

keep_option: Option = click.option(
    "--keep/--delete", help="Keep finished rows, or delete them.  [default: delete]"
)


def process_options(*, least: int) -> Option:
    """Make ``--producers`` and ``--consumers``: how many processes, at least so many of each."""

    def add_options(command: Any) -> Any:
        number = click.IntRange(min=least)
        for name, default in (("--consumers", 10), ("--producers", 2)):  # the last is shown first
            command = click.option(name, type=number, default=default, show_default=True)(command)
        return command

    return add_options
