"""A class that cannot be a queue is refused when it is mapped, with the way out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError as SQLAlchemyArgumentError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    mapped_column,
    registry,
    relationship,
)
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from sa_jobqueue import ArgumentError, JobMixin, PriorityMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.model.mapping import mapping_of
from tests.unit.mapping import columns


def map_job(*mixins: Any, **body: Any) -> Any:
    """Map a class named Job with these mixins and this body, on a base of its own."""

    class Base(DeclarativeBase):
        pass

    key = mapped_column(Integer, primary_key=True)
    return type("Job", (*mixins, Base), {"__tablename__": "job", "id": key, **body})


def map_with_args(**queue_args: Any) -> Any:
    """Map a class with these __queue_args__ and a column `weight`."""
    weight = mapped_column(Integer)
    return map_job(JobMixin, weight=weight, half=property(lambda job: 0), __queue_args__=queue_args)


def table_with(*columns: Column[Any]) -> Table:
    return Table("job", MetaData(), Column("id", Integer, primary_key=True), *columns)


def map_table(table: Table, **body: Any) -> Any:
    """Map a class with JobMixin to a table that the user wrote out."""

    class Base(DeclarativeBase):
        metadata = table.metadata

    return type("Job", (JobMixin, Base), {"__table__": table, **body})


# A column of the user's own


@pytest.mark.parametrize(
    "body",
    [
        {"status": mapped_column(String(20))},
        {"status": Column(String(20))},
        {"status": mapped_column(String(20)), "__annotations__": {"status": Mapped[str]}},
        {"__annotations__": {"status": Mapped[str]}},
    ],
    ids=["mapped_column", "Column", "annotated column", "annotation only"],
)
def test_a_status_of_the_users_own_is_an_error_that_shows_named(body: dict[str, Any]) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"'status' of its own.*named\(status='status'\).*named\(status='job_status'\)",
    ):
        map_job(JobMixin, **body)


def test_a_priority_of_the_users_own_is_an_error_that_shows_named() -> None:
    with pytest.raises(ArgumentError, match=r"named\(priority='job_priority'\)"):
        map_job(JobMixin, PriorityMixin, priority=mapped_column(Integer))


def test_a_status_on_a_mixin_of_the_users_own_is_an_error() -> None:
    class Stateful:
        status: Mapped[str] = mapped_column(String(20))

    for mixins in ((JobMixin, Stateful), (Stateful, JobMixin)):
        with pytest.raises(ArgumentError, match=r"named\(status="):
            map_job(*mixins)


def test_a_column_by_a_name_given_by_named_is_taken_for_the_queues() -> None:
    job = map_job(JobMixin.named(status="job_status"), job_status=mapped_column(String(20)))

    assert columns(job.__table__, "job_status") == ["job_status VARCHAR(20)"]


def test_a_dataclass_field_of_the_users_own_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"named\(owner="):
        map_job(JobMixin, MappedAsDataclass, __annotations__={"owner": Mapped[str]})


@pytest.mark.filterwarnings("ignore:Unmanaged access:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
def test_a_sqlmodel_field_of_the_users_own_is_an_error() -> None:
    class Model(SQLModel, registry=registry()):
        pass

    with pytest.raises(ArgumentError, match=r"named\(status="):

        class Hero(JobMixin, Model, table=True):
            id: int | None = Field(default=None, primary_key=True)
            status: str


def test_a_property_named_owner_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"Job\.owner is not mapped to a column"):
        map_job(JobMixin, owner=property(lambda job: "me"))


def test_a_relationship_named_owner_is_an_error() -> None:
    class Base(DeclarativeBase):
        pass

    class User(Base):
        __tablename__ = "user"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ArgumentError, match=r"Ticket\.owner is not mapped to a column"):

        class Ticket(JobMixin, Base):
            __tablename__ = "ticket"
            id: Mapped[int] = mapped_column(primary_key=True)
            owner_id: Mapped[int] = mapped_column(ForeignKey("user.id"))
            owner = relationship(User)


# Two claims to one column


@pytest.mark.filterwarnings("ignore:On class 'Job', Column object:sqlalchemy.exc.SAWarning")
def test_two_attributes_of_one_column_name_are_an_error() -> None:
    with pytest.raises(SQLAlchemyArgumentError, match="column with name 'status'"):
        map_job(JobMixin, state=mapped_column("status", String(20)))


def test_a_column_mapped_under_another_attribute_is_an_error() -> None:
    class Job(JobMixin):
        pass

    table = table_with(Column("status", String(16)))
    with pytest.raises(ArgumentError, match=r"Job\.status is not mapped to a column"):
        registry().map_imperatively(Job, table, properties={"state": table.c.status})


def test_two_mixins_with_one_name_are_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"named\(priority="):
        map_job(JobMixin.named(owner="priority"), PriorityMixin)


# Keys


def test_a_class_without_a_primary_key_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"Job cannot be a queue: .*'job' has no primary key"):
        map_job(JobMixin, id=mapped_column(Integer))


def test_a_table_without_a_primary_key_is_refused_when_it_is_mapped_imperatively() -> None:
    class Job(JobMixin):
        pass

    with pytest.raises(ArgumentError, match="no primary key"):
        registry().map_imperatively(Job, Table("job", MetaData(), Column("id", Integer)))


def test_a_key_that_the_mapper_is_given_is_enough() -> None:
    job = map_job(JobMixin, id=mapped_column(Integer), __mapper_args__={"primary_key": ["id"]})

    assert [column.name for column in mapping_of(job).keys] == ["id"]


# Renamed columns and written out tables


@pytest.mark.parametrize(
    ("role", "type_"),
    [
        ("status", Integer()),
        ("owner", String(10)),
        ("owner", Enum("w", name="owners")),
        ("owner_date", Date()),
        ("priority", Float()),
    ],
    ids=str,
)
def test_a_renamed_column_of_an_unfit_type_is_an_error(role: str, type_: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"Job\.{role} is .*, but {role} needs "):
        map_job(JobMixin, PriorityMixin, **{role: mapped_column("other", type_)})


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (String(8), "'unclaimed' is longer than Job.status"),
        (
            Enum("unclaimed", "claimed", name="states"),
            "'done' is not among the values .* to the enum",
        ),
    ],
    ids=["too short", "a word is missing"],
)
def test_a_status_that_cannot_hold_every_word_is_an_error(type_: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        map_job(JobMixin.named(status="status"), status=mapped_column(type_))


class NaiveUtc(TypeDecorator[datetime]):
    impl = DateTime
    cache_ok = True


@pytest.mark.parametrize("type_", [DateTime(), NaiveUtc()], ids=["DateTime", "decorated"])
@pytest.mark.parametrize(("role", "mixin"), [("owner_date", JobMixin), ("run_at", ScheduleMixin)])
def test_a_time_without_a_zone_is_an_error_that_shows_how_to_alter_it(
    role: str, mixin: Any, type_: Any
) -> None:
    others = [JobMixin] if mixin is ScheduleMixin else []
    shown = rf"Job\.at is .*, but {role} needs a time zone.*\"at AT TIME ZONE 'UTC'\".*job_{role}"
    with pytest.raises(ArgumentError, match=shown):
        map_job(mixin.named(**{role: "at"}), *others, at=mapped_column(type_))


@pytest.mark.parametrize(
    ("role", "column", "needs"),
    [
        ("priority", mapped_column(Integer), "nullable=False"),
        ("owner", mapped_column(String(64), nullable=False), "nullable=True"),
    ],
)
def test_a_column_that_may_or_may_not_be_null_against_its_role_is_an_error(
    role: str, column: Any, needs: str
) -> None:
    mixins = {
        mixin.named(**{role: "own"}) if role in mixin.__queue_attributes__ else mixin
        for mixin in (JobMixin, PriorityMixin)
    }
    with pytest.raises(ArgumentError, match=rf"Job\.own may .*, but {role} needs {needs}"):
        map_job(*mixins, own=column)


@pytest.mark.parametrize("own", [mapped_column(Integer, default=5), 5], ids=["column", "number"])
def test_an_own_max_attempts_is_an_error_that_shows_the_option(own: Any) -> None:
    with pytest.raises(ArgumentError, match=r"__queue_args__ = \{'max_attempts': 5\}"):
        map_job(JobMixin, RetryMixin, max_attempts=own)


@pytest.mark.parametrize("precision", [0, 3])
def test_a_time_of_a_lower_precision_cannot_hold_a_fence(precision: int) -> None:
    type_ = postgresql.TIMESTAMP(timezone=True, precision=precision)

    with pytest.raises(ArgumentError, match=r"Job\.owner_date is .*6 digits of a second"):
        map_job(JobMixin, owner_date=mapped_column("taken_at", type_))


def test_a_table_without_the_column_is_an_error_that_shows_how_to_map_another() -> None:
    with pytest.raises(
        ArgumentError, match=r"Job\.status is not mapped.* status = mapped_column\('its_name'\)"
    ):
        map_table(table_with())


def test_an_imperative_mapping_without_the_column_is_an_error() -> None:
    class Job(JobMixin):
        pass

    with pytest.raises(ArgumentError, match=r"Job\.owner is not mapped to a column"):
        registry().map_imperatively(Job, table_with(Column("status", String(16))))


# named()


def test_named_refuses_a_column_that_the_mixin_does_not_have() -> None:
    with pytest.raises(ArgumentError, match=r"JobMixin has no column 'state'.* status, owner, own"):
        JobMixin.named(state="job_state")


@pytest.mark.parametrize(
    "names", [{"status": "x", "owner": "x"}, {"status": "owner"}], ids=["both new", "one new"]
)
def test_named_refuses_one_name_for_two_columns(names: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="one name to two columns"):
        JobMixin.named(**names)


def test_named_again_keeps_the_names_given_before() -> None:
    job = map_job(JobMixin.named(status="job_status").named(owner="job_owner"))

    assert {"job_status", "job_owner", "owner_date"} <= set(job.__table__.c.keys())


# __queue_args__


def test_an_unknown_option_is_an_error_that_lists_the_options() -> None:
    with pytest.raises(ArgumentError, match=r"no option 'leese'.* equality, ready, .*lease"):
        map_with_args(leese=5)


@pytest.mark.parametrize("option", ["order_by", "equality"])
@pytest.mark.parametrize("value", [["nope"], ["half"]], ids=["unknown", "property"])
def test_a_name_that_is_not_a_mapped_attribute_is_an_error(option: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"Job\.__queue_args__\['{option}'\] names '.*of Job"):
        map_with_args(**{option: value})


@pytest.mark.parametrize("option", ["order_by", "equality", "ready"])
def test_a_name_that_is_not_a_string_is_an_error(option: str) -> None:
    with pytest.raises(ArgumentError, match=rf"\['{option}'\] takes names, as strings"):
        map_with_args(**{option: [5]})


def test_an_unknown_direction_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"'weight down' should be .* followed by ' desc'"):
        map_with_args(order_by=["weight down"])


@pytest.mark.parametrize("word", ["it's", "x" * 65, "", 5, "ä"])
def test_a_word_that_cannot_be_a_status_is_an_error(word: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be a status"):
        map_with_args(names={"unclaimed": word})
    with pytest.raises(ArgumentError):
        map_with_args(ready=[word])


def test_a_word_for_an_unknown_status_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"'ready' is not a valid JobStatus.* unclaimed, clai"):
        map_with_args(names={"ready": "unsent"})


@pytest.mark.parametrize("names", [{"unclaimed": "done"}, {"done": "x", "failed": "x"}])
def test_one_word_for_two_statuses_is_an_error(names: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="one word for two statuses"):
        map_with_args(names=names)


# mapping_of()


@pytest.mark.parametrize(
    "thing", [int, None, "Email", JobMixin, object()], ids=lambda one: type(one).__name__
)
def test_only_a_mapped_class_has_a_mapping(thing: Any) -> None:
    with pytest.raises(ArgumentError, match="is not a mapped class"):
        mapping_of(thing)


@pytest.mark.parametrize("mixins", [(), (PriorityMixin,)], ids=["none", "another mixin"])
def test_a_class_without_job_mixin_is_no_queue(mixins: Any) -> None:
    with pytest.raises(ArgumentError, match="Job is not a queue: add JobMixin to its bases"):
        mapping_of(map_job(*mixins))


@pytest.mark.parametrize("option", ["notify", "failed_index"])
def test_an_option_of_yes_or_no_is_true_or_false(option: str) -> None:
    with pytest.raises(ArgumentError, match=rf"__queue_args__\['{option}'\] is a bool: 'yes'"):
        map_job(JobMixin, __queue_args__={option: "yes"})


@pytest.mark.parametrize("most", [0, True, "5"])
def test_max_attempts_is_a_number_or_none(most: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\['max_attempts'\] is a number, 1 or more, or None"):
        map_job(JobMixin, RetryMixin, __queue_args__={"max_attempts": most})


def test_max_attempts_without_attempts_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="add RetryMixin to its bases"):
        map_job(JobMixin, __queue_args__={"max_attempts": 5})
