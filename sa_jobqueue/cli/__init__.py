"""The command line, a file for each command; it needs the extra ``cli`` (click and rich).

::

    sa-jobqueue demo                        # producers, consumers, and the proof
    sa-jobqueue status shop.models:Email    # a queue of your own
    sa-jobqueue status shop.queues --json   # all queues of a module, by indexes alone
    sa-jobqueue top shop.queues             # the same, live
    sa-jobqueue web shop.queues             # the same as a web page, to steer them, too
    sa-jobqueue metrics shop.queues         # the same, for Prometheus
    sa-jobqueue failed shop.models:Email    # failed jobs with their errors
    sa-jobqueue retry shop.models:Email 7 8 # also cancel, release, reprioritize; they ask first
    sa-jobqueue prune shop.models:Email --older-than 604800
    sa-jobqueue work shop.queues --processes 4 # all queues with handlers in a module
    sa-jobqueue work shop.models:Email --handler shop.mail:send --drain
    sa-jobqueue work shop.films:workflow --step render
    sa-jobqueue reap shop.models:Email --every 60
    sa-jobqueue pause shop.models:Email     # workers claim nothing of it, until `resume`
    sa-jobqueue request-stop shop.models:Email 7 # ask the worker that has the job to stop it
    sa-jobqueue workers shop.models:Email   # who works, and whether they are alive
    sa-jobqueue schedules shop.models:Email # when they run, and what was missed
    sa-jobqueue load shop.imports:emails --log loads/may
    sa-jobqueue sql shop.models:Email --dialect postgresql
    sa-jobqueue doctor shop.models:Email    # does an index serve the claim, at what cost

Commands on your own queue take the database from ``--url``, from ``--engine MODULE:ENGINE``,
or from SA_JOBQUEUE_URL in the environment, and do not guess. ``demo`` works on an SQLite file
in the current directory, or on ``--url``.
"""

from __future__ import annotations

import click

from ..version import __version__
from .change_jobs import cancel, release, reprioritize, retry
from .demo import demo
from .doctor import doctor
from .errors import OneLineErrors
from .failed import failed
from .load import load
from .metrics import metrics
from .pause import pause, resume
from .prune import prune
from .reap import reap
from .request_stop import request_stop
from .schedules import schedules
from .sql import sql
from .status import status
from .top import top
from .web import web
from .work import work
from .workers import workers

__all__ = ["cli"]


@click.group(cls=OneLineErrors)
@click.version_option(__version__, package_name="sa_jobqueue")
def cli() -> None:
    """Turn a table of your SQLAlchemy application into a job queue."""


cli.add_command(status)
cli.add_command(top)
cli.add_command(web)
cli.add_command(metrics)
cli.add_command(failed)
cli.add_command(retry)
cli.add_command(cancel)
cli.add_command(release)
cli.add_command(reprioritize)
cli.add_command(prune)
cli.add_command(work)
cli.add_command(reap)
cli.add_command(pause)
cli.add_command(resume)
cli.add_command(request_stop)
cli.add_command(workers)
cli.add_command(schedules)
cli.add_command(load)
cli.add_command(sql)
cli.add_command(doctor)
cli.add_command(demo)
