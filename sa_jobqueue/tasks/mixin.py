"""The columns of a table of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from ..model.mixins import JobMixin, PriorityMixin, RetryMixin

#: The longest name of a task.
NAME_LENGTH = 128


class TaskMixin(JobMixin, PriorityMixin, RetryMixin):
    """Add ``name``, ``arguments`` and ``result`` to a queue with priorities, times and retries.

    The arguments are those of the call by the names of the parameters, the result is what the
    function has returned, both as JSON.
    """

    __job_text__ = ("name", "arguments")

    #: The tasks that are declared for the class, by name.
    __tasks__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
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
            return mapped_column(String(NAME_LENGTH), nullable=False, sort_order=10)

        @declared_attr
        def arguments(cls):  # noqa: N805
            return mapped_column(JSON(), nullable=False, sort_order=11)

        @declared_attr
        def result(cls):  # noqa: N805
            return mapped_column(JSON(none_as_null=True), nullable=True, sort_order=12)
