"""Every style of mapping gets the queue's columns and indexes; no server is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Index, Integer, String, Table, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.declarative import AbstractConcreteBase
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    mapped_column,
    registry,
)
from sqlalchemy.schema import CreateTable
from sqlmodel import Field, SQLModel

from sa_jobqueue import ArgumentError, JobMixin, PriorityMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.model.mapping import mapping_of
from tests.unit.mapping import Base, assert_queue, columns, indexes, table_of

# The bases and the body of the class


def test_a_plain_class_becomes_a_queue() -> None:
    class Email(JobMixin, Base):
        __tablename__ = "email"
        id: Mapped[int] = mapped_column(primary_key=True)
        recipient: Mapped[str]

    assert_queue(Email)
    assert list(table_of(Email).c.keys()) == ["id", "recipient", "status", "owner", "owner_date"]


def test_times_have_microseconds_on_every_database() -> None:
    class Appointment(JobMixin, ScheduleMixin, Base):
        __tablename__ = "appointment"
        id: Mapped[int] = mapped_column(primary_key=True)

    table = table_of(Appointment)

    assert columns(table, "run_at", "owner_date", dialect="mysql") == [
        "run_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))",
        "owner_date DATETIME(6)",
    ]
    assert columns(table, "owner_date", dialect="sqlite") == ["owner_date DATETIME"]


def test_the_users_own_table_args_tuple_is_kept() -> None:
    class Parcel(JobMixin, Base):
        __tablename__ = "parcel"
        __table_args__ = (
            UniqueConstraint("number", name="uq_number"),
            Index("ix_weight", "weight"),
            {"comment": "parcels"},
        )
        id: Mapped[int] = mapped_column(primary_key=True)
        number: Mapped[str]
        weight: Mapped[int]

    table = table_of(Parcel)

    assert {index.name for index in table.indexes} == {
        "ix_weight",
        "ix_parcel_claim",
        "ix_parcel_reap",
    }
    assert "uq_number" in {constraint.name for constraint in table.constraints}
    assert table.comment == "parcels"


def test_the_users_own_table_args_dict_is_kept() -> None:
    class Postcard(JobMixin, Base):
        __tablename__ = "postcard"
        __table_args__ = {"comment": "postcards"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Postcard)
    assert table_of(Postcard).comment == "postcards"


def test_several_mixins_order_the_index_by_priority_time_and_key() -> None:
    class Task(RetryMixin, ScheduleMixin, PriorityMixin, JobMixin, Base):
        __tablename__ = "task"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Task, claim="status, priority, run_at, id")
    optional = ("priority", "run_at", "attempts", "max_attempts", "last_error")
    assert columns(table_of(Task), *optional) == [
        "priority SMALLINT DEFAULT '0' NOT NULL",
        "run_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL",
        "attempts INTEGER DEFAULT '0' NOT NULL",
        "max_attempts INTEGER DEFAULT '20'",
        "last_error TEXT",
    ]


def test_retries_bring_a_time_to_wait_for_along() -> None:
    class Upload(JobMixin, RetryMixin, PriorityMixin, Base):
        __tablename__ = "upload"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Upload, claim="status, priority, run_at, id")


def test_retries_and_a_schedule_share_one_time() -> None:
    scheduled, retried = ScheduleMixin.named(run_at="due"), RetryMixin.named(run_at="due")

    class Download(JobMixin, scheduled, retried, Base):  # type: ignore[misc, valid-type]  # calls
        __tablename__ = "download"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Download, claim="status, due, id")
    with pytest.raises(ArgumentError, match=r"run_at by two names, due and run_at"):

        class Twice(JobMixin, ScheduleMixin.named(run_at="due"), RetryMixin, Base):  # type: ignore[misc]  # a call
            __tablename__ = "twice"
            id: Mapped[int] = mapped_column(primary_key=True)


def test_an_old_mysql_has_a_constant_for_its_clock() -> None:
    class Fossil(JobMixin, ScheduleMixin, Base):
        __tablename__ = "fossil"
        id: Mapped[int] = mapped_column(primary_key=True)

    old = mysql.dialect()
    old.server_version_info = (5, 7, 44)

    written = str(CreateTable(table_of(Fossil)).compile(dialect=old))

    # SQLAlchemy 2.1 learns only from a connection whether the default stands in parentheses.
    assert re.search(
        r"run_at DATETIME\(6\) NOT NULL DEFAULT \(?'1970-01-01 00:00:00.000000'", written
    )


def test_a_number_of_attempts_is_filled_in_where_the_model_says_none() -> None:
    class Open(JobMixin, RetryMixin, Base):
        __tablename__ = "open_number"
        id: Mapped[int] = mapped_column(primary_key=True)
        max_attempts = mapped_column("most", Integer)

    class Closed(JobMixin, RetryMixin, Base):
        __tablename__ = "closed_number"
        id: Mapped[int] = mapped_column(primary_key=True)
        max_attempts = mapped_column("most", Integer, default=5)

    assert columns(table_of(Open), "most") == ["most INTEGER"]
    assert columns(table_of(Closed), "most") == ["most INTEGER"]
    defaults: list[Any] = [table_of(entity).c.most.default for entity in (Open, Closed)]
    assert [default.arg for default in defaults] == [20, 5]


def test_the_base_may_stand_before_the_mixins() -> None:
    class Invoice(Base, JobMixin, PriorityMixin):
        __tablename__ = "invoice"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Invoice, claim="status, priority, id")


def test_a_mixin_on_the_base_makes_every_class_a_queue() -> None:
    class QueueBase(JobMixin, DeclarativeBase):
        pass

    class Apple(QueueBase):
        __tablename__ = "apple"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Pear(PriorityMixin, QueueBase):
        __tablename__ = "pear"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Apple)
    assert_queue(Pear, claim="status, priority, id")


def test_an_abstract_base_hands_the_mixins_on() -> None:
    class AbstractJob(JobMixin, ScheduleMixin, Base):
        __abstract__ = True
        id: Mapped[int] = mapped_column(primary_key=True)

    class Report(AbstractJob):
        __tablename__ = "report"

    class Digest(AbstractJob):
        __tablename__ = "digest"

    assert_queue(Report, claim="status, run_at, id")
    assert_queue(Digest, claim="status, run_at, id")


# Inheritance


def test_a_single_table_hierarchy_has_the_columns_and_indexes_once() -> None:
    class Animal(JobMixin, Base):
        __tablename__ = "animal"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "a"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Cat(Animal):
        __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012 - as users write it
        lives: Mapped[int | None]

    assert_queue(Animal)
    assert mapping_of(Cat).table is Animal.__table__


def test_a_joined_hierarchy_has_the_columns_in_its_root_only() -> None:
    class Vehicle(JobMixin, PriorityMixin, Base):
        __tablename__ = "vehicle"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "v"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Car(Vehicle):
        __tablename__ = "car"
        __mapper_args__ = {"polymorphic_identity": "car"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(ForeignKey("vehicle.id"), primary_key=True)
        doors: Mapped[int]

    assert_queue(Vehicle, claim="status, priority, id")
    assert list(table_of(Car).c.keys()) == ["id", "doors"]
    assert indexes(table_of(Car)) == []
    assert mapping_of(Car).table is Vehicle.__table__


def test_the_subclasses_of_an_abstract_concrete_base_are_queues() -> None:
    class ConcreteBase(DeclarativeBase):
        pass

    class Staff(JobMixin, AbstractConcreteBase, ConcreteBase):
        strict_attrs = True
        name: Mapped[str] = mapped_column(String(20))

    class Manager(Staff):
        __tablename__ = "manager"
        __mapper_args__ = {"polymorphic_identity": "manager", "concrete": True}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)

    class Engineer(Staff):
        __tablename__ = "engineer"
        __mapper_args__ = {"polymorphic_identity": "engineer", "concrete": True}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)

    ConcreteBase.registry.configure()

    for entity in (Manager, Engineer):
        assert_queue(entity)
        assert mapping_of(entity).tables == 1
    with pytest.raises(ArgumentError, match="Staff is mapped to a query: claim the class of a t"):
        _ = mapping_of(Staff).table


def test_a_mixin_on_a_joined_subclass_stands_in_its_table() -> None:
    class Document(Base):
        __tablename__ = "document"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "d"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Scan(JobMixin, Document):
        __tablename__ = "scan"
        __mapper_args__ = {"polymorphic_identity": "scan"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(ForeignKey("document.id"), primary_key=True)

    assert_queue(Scan)
    assert list(table_of(Document).c.keys()) == ["id", "kind"]
    assert indexes(table_of(Document)) == []


def test_a_mixin_on_a_single_table_subclass_stands_in_the_roots_table() -> None:
    class Shape(Base):
        __tablename__ = "shape"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "s"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Circle(JobMixin, Shape):
        __mapper_args__ = {"polymorphic_identity": "circle"}  # noqa: RUF012 - as users write it

    assert_queue(Shape)
    assert mapping_of(Circle).table is Shape.__table__


# Other ways to map


def test_a_dataclass_becomes_a_queue_and_its_constructor_does_not_know_the_columns() -> None:
    class DataclassBase(MappedAsDataclass, DeclarativeBase):
        pass

    class Point(JobMixin, PriorityMixin, DataclassBase):
        __tablename__ = "point"
        id: Mapped[int] = mapped_column(primary_key=True, init=False)
        x: Mapped[int]
        y: Mapped[int] = mapped_column(default=0)

    assert_queue(Point, claim="status, priority, id")
    assert repr(Point(1)).endswith("Point(id=None, x=1, y=0)")
    with pytest.raises(TypeError, match="priority"):
        Point(1, priority=5)  # type: ignore[call-arg]  # the constructor does not know the column


def test_a_dataclass_style_mixed_into_one_class_becomes_a_queue() -> None:
    class Line(MappedAsDataclass, JobMixin, Base):
        __tablename__ = "line"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Line)
    assert Line(id=3).id == 3


@pytest.fixture
def sqlmodel_registry() -> Iterator[registry]:
    """Give a registry of the test's own: SQLModel has one for all classes."""
    own = registry()
    yield own
    own.dispose()


def test_a_sqlmodel_becomes_a_queue(sqlmodel_registry: registry) -> None:
    class Model(SQLModel, registry=sqlmodel_registry):
        pass

    class Hero(JobMixin, PriorityMixin, Model, table=True):
        id: int | None = Field(default=None, primary_key=True)
        name: str

    assert_queue(Hero, claim="status, priority, id")
    assert set(Hero.model_fields) == {"id", "name"}


def test_an_imperative_mapping_becomes_a_queue() -> None:
    class Letter(JobMixin):
        pass

    mapper_registry = registry()
    letters = Table("letter", mapper_registry.metadata, *job_columns())

    mapper_registry.map_imperatively(Letter, letters)

    assert_queue(Letter)


def test_a_hybrid_table_becomes_a_queue() -> None:
    class Telegram(JobMixin, Base):
        __table__ = Table("telegram", Base.metadata, *job_columns())

    assert_queue(Telegram)


def job_columns() -> list[Column[Any]]:
    """List the columns of a table that the user wrote out."""
    return [
        Column("id", Integer, primary_key=True),
        Column("status", String(16), server_default="unclaimed", nullable=False),
        Column("owner", String(64)),
        Column("owner_date", mapping_of(example()).column("owner_date").type),
    ]


def example() -> type[Any]:
    class Example(JobMixin, declarative_base()):  # type: ignore[misc]  # made by a call
        __tablename__ = "example"
        id = Column(Integer, primary_key=True)

    return Example


def test_declarative_base_without_mapped_becomes_a_queue() -> None:
    assert_queue(example())
