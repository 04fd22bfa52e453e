"""Tasks: calls of functions as jobs of one table.

::

    from sa_jobqueue.tasks import TaskMixin, TaskQueue

    class Task(TaskMixin, Base):
        __tablename__ = "task"
        id: Mapped[int] = mapped_column(primary_key=True)

    tasks = TaskQueue(Task)

    @tasks.task(max_attempts=5)
    def send_invoice(order_id: int, *, copy: bool = False) -> str: ...

    send_invoice.enqueue(session, 7, copy=True)

A worker on ``tasks`` calls the functions: ``sa-jobqueue work shop.tasks``. Arguments and results
are kept as JSON by pydantic, which the extra ``tasks`` installs.
"""

from .mixin import TaskMixin
from .queue import TaskQueue
from .task import Task

__all__ = ["Task", "TaskMixin", "TaskQueue"]
