"""Schedules: insert jobs at fixed times, such as every weekday at 07:00.

::

    schedules = Schedules(Base.metadata)         # before create_all(), or a migration

    outbox = JobQueue(Email)
    outbox.every("0 7 * * mon-fri", name="morning", timezone="Europe/Berlin", values={..})

    schedules.declare(session, [outbox])         # once, when the application starts
    schedules.run_due(session, [outbox])         # again and again; then commit

A schedule is a row of a table that is itself a queue of the library. Each of its times is a tick. A
scheduler claims the rows that are due, inserts their jobs, and releases the rows until their next
ticks, in one transaction. Each tick therefore makes its job once, however many schedulers there
are. docs/schedules.md has the limits.

======================  =====================================================
``schedules``           Schedules: every method that works on schedules; ticks become jobs
``table``               Schedule: the mapped class of the rows; the values of their jobs
``declared``            every(): what the queues declare, checked, and written to the table
``ticks``               the ticks of an expression: which are due, and what becomes of missed ones
======================  =====================================================

Schedules need the extra ``schedules`` (cronsim), which is imported for the first tick.
"""

from .declared import Declared
from .schedules import Ran, ScheduleInfo, Schedules
from .table import Schedule
from .ticks import Missed

__all__ = ["Declared", "Missed", "Ran", "Schedule", "ScheduleInfo", "Schedules"]
