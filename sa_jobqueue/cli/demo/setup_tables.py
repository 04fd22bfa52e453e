"""``setup-tables``: the empty table of the example model."""

from __future__ import annotations

import click

from ..engine import open_engine, shown_url
from ..options import example_url_option
from .model import Record, recreate_tables


@click.command()
@example_url_option
def setup_tables(url: str) -> None:
    """Drop the table of the example model, and create it again."""
    engine = open_engine(url, create_file=True)
    recreate_tables(engine)
    click.echo(f"table {Record.__tablename__!r} is ready in {shown_url(engine)}")
