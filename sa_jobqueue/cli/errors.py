"""An error of the database, of a URL or of a model is one line, and exit code 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from sqlalchemy.exc import DBAPIError, SQLAlchemyError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn SQLAlchemy's errors, and with them ours, into click's."""
    try:
        yield
    except SQLAlchemyError as error:
        raise click.ClickException(in_one_line(error)) from error


def in_one_line(error: BaseException) -> str:
    """Return what an error says, without the statement, the links and the line breaks."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = str(said.args[-1]) if said.args else ""  # drivers of MySQL put a number first
    return " ".join(text.split()) or type(said).__name__
