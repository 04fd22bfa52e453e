"""The columns of a table of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import JSON, String
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from ..model.mixins import JobMixin, PriorityMixin, RetryMixin

#: How long rows that are done or cancelled are kept, unless ``__queue_args__`` tells otherwise.
KEEP_FOR = timedelta(days=7)

#: The longest name of a task.
NAME_LENGTH = 128

#: MySQL and MariaDB would take `Send` for `send`: a worker would claim jobs that it does not know.
NAME = String(NAME_LENGTH).with_variant(
    mysql.VARCHAR(NAME_LENGTH, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)


class TaskMixin(JobMixin, PriorityMixin, RetryMixin):
    """Add ``name``, ``arguments`` and ``result`` to a queue with priorities, times and retries.

    The arguments are those of the call by the names of the parameters, the result is what the
    function has returned, both as JSON.
    """

    __job_text__ = ("name", "arguments")

    __queue_args__: ClassVar[Mapping[str, Any]]

    #: The tasks that are declared for the class, by name.
    __tasks__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        cls.__queue_args__ = {"keep_for": KEEP_FOR, **getattr(cls, "__queue_args__", {})}
        super().__init_subclass__(**options)
        cls.__tasks__ = {}

    @classmethod
    def job_text(cls, *values: Any) -> str:
        """Write the call of a task; of one that is not declared here, only the name."""
        name, arguments = values
        task = cls.__tasks__.get(name)
        text: str = f"{name}(…)" if task is None else task.signature.show(arguments)
        return text

    if TYPE_CHECKING:
        name: Mapped[str]
        arguments: Mapped[dict[str, Any]]
        result: Mapped[Any]
    else:

        @declared_attr
        def name(cls):  # noqa: N805 - as SQLAlchemy calls it
            return mapped_column(NAME, nullable=False, sort_order=10)

        @declared_attr
        def arguments(cls):  # noqa: N805
            return mapped_column(JSON(), nullable=False, sort_order=11)

        @declared_attr
        def result(cls):  # noqa: N805
            return mapped_column(JSON(none_as_null=True), nullable=True, sort_order=12)
