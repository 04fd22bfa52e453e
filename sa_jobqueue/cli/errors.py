"""Errors on the command line: one line, and exit code 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from sqlalchemy.exc import DBAPIError, SQLAlchemyError


class OneLineErrors(click.Group):
    """A group whose commands report an error of the database in one line, and exit with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with one_line_errors():
            return super().invoke(ctx)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the errors of SQLAlchemy, and ours, which derive from them, into click's."""
    try:
        yield
    except SQLAlchemyError as error:
        raise click.ClickException(in_one_line(error)) from error


def in_one_line(error: BaseException) -> str:
    """Return an error's text without the statement, the links and the line breaks."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = str(cause.args[-1]) if cause.args else ""  # drivers of MySQL put a number first
    return " ".join(text.split()) or type(cause).__name__
