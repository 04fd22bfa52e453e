"""Control: tables that tell which workers live, which queues are paused, and which jobs to stop.

::

    control_tables(Base.metadata)                # before create_all(), or a migration

    pause(session, Email)
    session.commit()
    for worker in workers(session):
        print(worker.name, worker.state, worker.jobs)

They are optional: without the tables no statement asks for them. docs/control.md has the limits.

======================  =====================================================
``tables``              control_tables, and how a verb finds them
``pauses``              pause, resume, paused
``workers``             the rows of workers, and whether they are alive
``stops``               request_stop
``state``               read_control: what a worker asks once a second
======================  =====================================================
"""

from .pauses import Pause, pause, paused, resume
from .state import ControlState, read_control
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
