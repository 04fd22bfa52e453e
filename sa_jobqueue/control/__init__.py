"""Control: list workers, pause queues, and stop jobs, with three more tables.

::

    control_tables(Base.metadata)                # before create_all(), or a migration

    pause(session, Email)
    session.commit()
    for worker in workers(session):
        print(worker.name, worker.state, worker.jobs)

The tables are optional: without them, no statement reads them. docs/control.md has the limits.

======================  =====================================================
``tables``              control_tables, and how a verb finds them
``requests``            pause, resume, paused, request_stop; read_control: what a worker reads
``workers``             the rows of workers, and whether they are alive
======================  =====================================================
"""

from .requests import ControlState, Pause, pause, paused, read_control, request_stop, resume
from .tables import ControlTables, control_tables
from .workers import WorkerInfo, register_worker, unregister_worker, workers

__all__ = [
    "ControlState",
    "ControlTables",
    "Pause",
    "WorkerInfo",
    "control_tables",
    "pause",
    "paused",
    "read_control",
    "register_worker",
    "request_stop",
    "resume",
    "unregister_worker",
    "workers",
]
