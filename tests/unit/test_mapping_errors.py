"""A class that cannot be a queue is refused when it is mapped, with the way out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Column, Date, DateTime, Enum, Float, Integer, MetaData, String, Table
from sqlalchemy.exc import ArgumentError as SQLAlchemyArgumentError
from sqlalchemy.orm import Mapped, MappedAsDataclass, mapped_column, registry, relationship
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from tests.models import Account, Email
from tests.unit.mapping import map_job


class Stateful:
    status: Mapped[str] = mapped_column(String(20))


class NaiveUtc(TypeDecorator[datetime]):
    impl = DateTime
    cache_ok = True


def with_args(**queue_args: Any) -> Any:
    """Map a class with these __queue_args__ and a column `weight`."""
    weight = mapped_column(Integer)
    return map_job(JobMixin, weight=weight, half=property(lambda job: 0), __queue_args__=queue_args)


def imperative(*columns: Column[Any], **properties: str) -> Any:
    """Map a class with JobMixin to a table that the user wrote out."""
    job = type("Job", (JobMixin,), {})
    table = Table("job", MetaData(), Column("id", Integer, primary_key=True), *columns)
    named = {attribute: table.c[column] for attribute, column in properties.items()}
    return registry().map_imperatively(job, table, properties=named)


def sqlmodel() -> Any:
    class Model(SQLModel, registry=registry()):
        pass

    class Hero(JobMixin, Model, table=True):
        id: int | None = Field(default=None, primary_key=True)
        status: str


def with_a_table_of_rounds() -> Any:
    guest = map_job(__tablename__="job_rounds")
    return map_job(JobMixin, RoundMixin, metadata=guest.metadata)


def renamed(role: str, type_: Any) -> Any:
    return map_job(JobMixin, PriorityMixin, **{role: mapped_column("other", type_)})


def at(mixin: Any, role: str, type_: Any) -> Any:
    others = [] if mixin is JobMixin else [JobMixin]
    return map_job(mixin.named(**{role: "at"}), *others, at=mapped_column(type_))


def naive(role: str) -> str:
    return rf"Job\.at is .*, but {role} needs a time zone.*\"at AT TIME ZONE 'UTC'\".*job_{role}"


def own(**body: Any) -> Any:
    return map_job(JobMixin, PriorityMixin, **body)


def named(mixin: Any = JobMixin, **names: Any) -> Any:
    """Give a column of the queue the name `own`, and declare it."""
    ((role, column),) = names.items()
    others = [] if mixin is JobMixin else [JobMixin]
    return map_job(mixin.named(**{role: "own"}), *others, own=column)


def retried(**args: Any) -> Any:
    return map_job(JobMixin, RetryMixin, __queue_args__=args)


OWN_STATUS = r"'status' of its own.*named\(status='status'\).*named\(status='job_status'\)"
UNMAPPED = r"Job\.(status|owner) is not mapped to a column"
OWN_MOST = r"__queue_args__ = \{'max_attempts': 5\}"
MOST = r"\['max_attempts'\] is a number, 1 or more, or None"
NAMES = r"__queue_args__\['(order_by|equality)'\] names '.*of Job"
STRINGS = r"\['(order_by|equality|ready)'\] takes names, as strings"
TWICE = "one word for two statuses"
NO_STATUS = "cannot be a status"
NO_WORDS = ["", "a" * 65, "it's", 'a"b', "50%", "a\\b", "a\nb", "a\n", " a", "-a", ":a", "é", "a;b"]
NO_CLASS = "is not a mapped class"

STATES = Enum("unclaimed", "claimed", name="states")
TEXT, NUMBER = String(20), Integer()

REFUSED: list[tuple[Any, str]] = [
    # A column of the user's own
    (lambda: own(status=mapped_column(TEXT)), OWN_STATUS),
    (lambda: own(status=Column(TEXT)), OWN_STATUS),
    (lambda: own(__annotations__={"status": Mapped[str]}), OWN_STATUS),
    (lambda: own(priority=mapped_column(NUMBER)), r"named\(priority='job_priority'\)"),
    (lambda: map_job(JobMixin, Stateful), OWN_STATUS),
    (lambda: map_job(Stateful, JobMixin), OWN_STATUS),
    (
        lambda: map_job(JobMixin, MappedAsDataclass, __annotations__={"owner": Mapped[str]}),
        r"named\(owner=",
    ),
    (sqlmodel, r"named\(status="),
    (lambda: own(owner=property(lambda job: "me")), UNMAPPED),
    (lambda: own(owner=relationship(Account)), UNMAPPED),
    (lambda: map_job(JobMixin, RetryMixin, max_attempts=mapped_column(NUMBER)), OWN_MOST),
    (lambda: map_job(JobMixin, RetryMixin, max_attempts=5), OWN_MOST),
    # Two claims to one name
    (lambda: own(state=mapped_column("status", TEXT)), "column with name 'status'"),
    (lambda: imperative(Column("status", String(16)), state="status"), UNMAPPED),
    (lambda: map_job(JobMixin.named(owner="priority"), PriorityMixin), r"named\(priority="),
    (
        lambda: map_job(JobMixin, ScheduleMixin.named(run_at="due"), RetryMixin),
        "run_at by two names, due and run_at",
    ),
    (with_a_table_of_rounds, "the table that records the rounds of Job"),
    # Keys
    (lambda: own(id=mapped_column(NUMBER)), "could not assemble any primary key columns"),
    # Columns that do not fit their roles
    (lambda: renamed("status", NUMBER), r"Job\.status is .*, but status needs "),
    (lambda: renamed("owner", String(10)), r"Job\.owner is .*, but owner needs "),
    (lambda: renamed("owner", Enum("w", name="owners")), r"but owner needs "),
    (lambda: renamed("owner_date", Date()), r"but owner_date needs "),
    (lambda: renamed("priority", Float()), r"but priority needs "),
    (lambda: named(status=mapped_column(String(8))), "'unclaimed' is longer than Job.own"),
    (lambda: named(status=mapped_column(STATES)), "'done' is not among the values .* to the enum"),
    (lambda: at(JobMixin, "owner_date", DateTime()), naive("owner_date")),
    (lambda: at(JobMixin, "owner_date", NaiveUtc()), naive("owner_date")),
    (lambda: at(ScheduleMixin, "run_at", DateTime()), naive("run_at")),
    (
        lambda: named(PriorityMixin, priority=mapped_column(NUMBER)),
        r"Job\.own may .*, but priority needs nullable=False",
    ),
    (
        lambda: named(owner=mapped_column(String(64), nullable=False)),
        r"Job\.own may .*, but owner needs nullable=True",
    ),
    (imperative, r"Job\.status is not mapped.* status = mapped_column\('its_name'\)"),
    (
        lambda: map_job(JobMixin, RetryMixin, last_error=mapped_column("why", String(99))),
        r"Job\.last_error is .*99.*, but last_error needs",
    ),
    # named()
    (lambda: JobMixin.named(state="x"), r"JobMixin has no column 'state'.* status, owner, own"),
    (lambda: JobMixin.named(status="x", owner="x"), "one name to two columns"),
    (lambda: JobMixin.named(status="owner"), "one name to two columns"),
    # __queue_args__
    (lambda: with_args(leese=5), r"no option 'leese'.* equality, ready, .*lease"),
    (lambda: with_args(order_by=["nope"]), NAMES),
    (lambda: with_args(order_by=["half"]), NAMES),
    (lambda: with_args(equality=["nope"]), NAMES),
    (lambda: with_args(order_by=[5]), STRINGS),
    (lambda: with_args(equality=[5]), STRINGS),
    (lambda: with_args(ready=[5]), STRINGS),
    (lambda: with_args(order_by=["weight down"]), r"should be .* followed by ' desc'"),
    (lambda: with_args(names={"unclaimed": "it's"}), NO_STATUS),
    *((lambda word=word: with_args(ready=[word]), NO_STATUS) for word in NO_WORDS),
    *((lambda word=word: JobQueue(Email, during=word), NO_STATUS) for word in (*NO_WORDS, 5, None)),
    (lambda: with_args(names={"unclaimed": 5}), NO_STATUS),
    (lambda: with_args(names={"ready": "unsent"}), r"is not a valid JobStatus.* unclaimed, clai"),
    (lambda: with_args(names={"unclaimed": "done"}), TWICE),
    (lambda: with_args(names={"done": "x", "failed": "x"}), TWICE),
    (lambda: with_args(notify="yes"), r"__queue_args__\['notify'\] is a bool: 'yes'"),
    (lambda: with_args(failed_index="yes"), r"__queue_args__\['failed_index'\] is a bool"),
    (lambda: with_args(max_attempts=5), "add RetryMixin to its bases"),
    (lambda: retried(max_attempts=0), MOST),
    (lambda: retried(max_attempts=True), MOST),
    (lambda: retried(max_attempts="5"), MOST),
    # What is no queue
    (lambda: JobQueue(int), NO_CLASS),
    (lambda: JobQueue(None), NO_CLASS),  # type: ignore[arg-type]  # what is refused
    (lambda: JobQueue(JobMixin), NO_CLASS),
    (lambda: JobQueue(map_job(PriorityMixin)), "Job is not a queue: add JobMixin to its bases"),
]


@pytest.mark.filterwarnings("ignore:On class 'Job', Column object:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:Unmanaged access:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
@pytest.mark.parametrize(("made", "words"), REFUSED)
def test_what_cannot_be_a_queue_is_refused(made: Any, words: str) -> None:
    with pytest.raises((ArgumentError, SQLAlchemyArgumentError), match=words):
        made()
