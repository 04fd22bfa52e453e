"""The command line, a file for each kind of command; it needs the extra ``cli`` (click and rich).

::

    sa-jobqueue demo                        # producers, consumers, and the proof
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
from .change_jobs import cancel, prune, reap, release, reprioritize, request_stop, retry
from .command import Commands
from .control import pause, resume, schedules, workers
from .demo import demo
from .examine import doctor, sql
from .health import health
from .load import load
from .see import failed, status, top
from .serve import metrics, web
from .work import work

__all__ = ["cli"]

cli = click.version_option(__version__, package_name="sa_jobqueue")(
    Commands(
        {
            "Work": [work],
            "See": [status, top, failed, workers, health, web],
            "Change": [retry, cancel, release, reprioritize, request_stop, pause, resume],
            "More": [doctor, sql, prune, reap, schedules, load, metrics, demo],
        },
        name="sa-jobqueue",
        help="Turn a table of your SQLAlchemy application into a job queue.",
    )
)
