"""``setup-tables``: the empty table of the example model."""

from __future__ import annotations

import click

from ..engine import open_engine, shown_url
from ..options import example_url_option
from .model import Record, recreate_tables


@click.command()
@example_url_option
def setup_tables(url: str) -> None:
    """Create the table of the example model.

    If the table exists, the command drops it first, with all rows.
    """
    engine = open_engine(url, create_file=True)
    recreate_tables(engine)
    click.echo(f"table {Record.__tablename__!r} is ready in {shown_url(engine)}")
