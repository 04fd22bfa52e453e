"""Schedules: rows that a scheduler claims, each of which inserts a job at its ticks.

::

    schedules = Schedules(Base.metadata)         # before create_all(), or a migration

    outbox = JobQueue(Email)
    outbox.every("0 7 * * mon-fri", name="morning", timezone="Europe/Berlin", values={..})

    schedules.declare(session, [outbox])         # once, when the application starts
    schedules.run_due(session, [outbox])         # again and again; then commit

A schedule is a row of a queue of the library's own. A scheduler claims the rows that are due,
inserts their jobs, and releases the rows until their next ticks, in one transaction: so each tick
makes its job once, however many schedulers there are. docs/schedules.md has the limits.

======================  =====================================================
``schedules``           Schedules: all that is done to schedules
``table``               Schedule: the mapped class of the rows
``declaration``         what a schedule is made of, checked
``values``              the values of a job, as JSON and as attributes
``registry``            every(): what the queues of this process declare
``declared``            how that comes into the table
``run``                 run_due: ticks become jobs
``ticks``               which ticks are due, and what becomes of missed ones
``missing_table``       names the way out where the table is not there
``cron``                the times of an expression in a time zone
======================  =====================================================

It needs the extra ``schedules`` (cronsim), which is imported when the first tick is computed.
"""

from .declared import Declared
from .run import Ran
from .schedules import ScheduleInfo, Schedules
from .table import Schedule
from .ticks import Missed

__all__ = ["Declared", "Missed", "Ran", "Schedule", "ScheduleInfo", "Schedules"]
