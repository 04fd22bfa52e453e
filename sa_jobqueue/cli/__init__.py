"""The command line; it needs the extra ``cli`` (click and rich).

::

    sa-jobqueue demo                        # producers, consumers, and the proof
    sa-jobqueue setup-tables                # the example model's table
    sa-jobqueue start-processing            # the workload, until Ctrl-C
    sa-jobqueue status shop.models:Email    # a queue of your own
    sa-jobqueue work shop.models:Email shop.mail:send --drain
    sa-jobqueue work shop.films:workflow --step render
    sa-jobqueue reap shop.models:Email --every 60
    sa-jobqueue load shop.imports:emails --log loads/may
    sa-jobqueue sql shop.models:Email --dialect postgresql
    sa-jobqueue doctor shop.models:Email    # is the claim served, by what, at what cost

Every command takes ``--url``; without it they use an SQLite file in the
current directory.
"""

from __future__ import annotations

from typing import Any

import click

from ..version import __version__
from .demo.demo import demo
from .demo.processing import setup_tables, start_processing
from .doctor import doctor
from .errors import one_line_errors
from .load import load
from .reap import reap
from .sql import sql
from .status import status
from .work import work

__all__ = ["cli"]


class OneLineErrors(click.Group):
    """A group whose commands end with one line and exit 1 where the database objects."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with one_line_errors():
            return super().invoke(ctx)


@click.group(cls=OneLineErrors)
@click.version_option(__version__, package_name="sa_jobqueue")
def cli() -> None:
    """Turn a table of your SQLAlchemy application into a job queue."""


for command in (setup_tables, start_processing, status, work, reap, load, sql, doctor, demo):
    cli.add_command(command)
