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
``pauses``              pause, resume, paused; read_control: what a worker reads once a second
``workers``             the rows of workers, and whether they are alive
``stops``               request_stop
======================  =====================================================
"""

from .pauses import ControlState, Pause, pause, paused, read_control, resume
from .stops import request_stop
from .tables import ControlTables, control_tables
from .workers import WorkerInfo, register_worker, unregister_worker, update_worker, workers

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
    "update_worker",
    "workers",
]
