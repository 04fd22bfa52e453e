"""The command line, a file for each kind of command; it needs the extra ``cli`` (click and rich).

::

    sa-jobqueue demo                        # rows, workers, and the proof
    sa-jobqueue work shop.queues --processes 4 # all queues with handlers in a module
    sa-jobqueue work shop.models:Email --handler shop.mail:send --drain
    sa-jobqueue status shop.queues --json   # all queues of a module, by indexes alone
    sa-jobqueue failed shop.models:Email    # failed jobs with their errors
    sa-jobqueue retry shop.models:Email 7 8 # also cancel, release, reprioritize; they ask first

Commands on your own queues take the database from ``--url``, from ``--engine MODULE:ENGINE``,
or from SA_JOBQUEUE_URL in the environment, and do not guess. ``demo`` works on an SQLite file
in the current directory, or on ``--url``. :mod:`.command` says how a command is declared.
"""

from __future__ import annotations

import click

from ..version import __version__
from . import change, see, serve
from .command import Commands
from .demo import demo
from .load import load
from .work import work

__all__ = ["cli"]

cli = click.version_option(__version__, package_name="sa_jobqueue")(
    Commands(
        {
            "Work": [work],
            "See": [see.status, see.top, see.failed, see.workers, see.health, serve.web],
            "Change": [
                *(change.retry, change.cancel, change.release, change.reprioritize),
                *(change.request_stop, change.pause, change.resume),
            ],
            "More": [
                *(see.doctor, see.sql, change.prune, change.reap, change.schedules),
                *(load, serve.metrics, demo),
            ],
        },
        name="sa-jobqueue",
        help="Turn a table of your SQLAlchemy application into a job queue.",
    )
)
