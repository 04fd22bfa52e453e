"""A class of every style of mapping, for the tests of tables and of their rows."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    mapped_column,
    registry,
)
from sqlmodel import Field, SQLModel

from sa_jobqueue import JobMixin, PriorityMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.migration import timestamp_type

metadata = MetaData()
mapper_registry = registry(metadata=metadata)


class Base(DeclarativeBase):
    registry = mapper_registry


class Plain(JobMixin, Base):
    __tablename__ = "style_plain"
    id: Mapped[int] = mapped_column(primary_key=True)


class EveryMixin(Base, JobMixin, PriorityMixin, ScheduleMixin, RetryMixin):
    __tablename__ = "style_every_mixin"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


class AbstractJob(JobMixin, Base):
    __abstract__ = True
    id: Mapped[int] = mapped_column(primary_key=True)


class OfAbstract(AbstractJob):
    __tablename__ = "style_of_abstract"
    __table_args__ = (sa.Index("style_own_index", "weight"), {"comment": "with table arguments"})
    weight: Mapped[int] = mapped_column(default=0)


class Animal(JobMixin, Base):
    __tablename__ = "style_animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012 - as users write it


class Dog(Animal):
    __tablename__ = "style_dog"
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(ForeignKey("style_animal.id"), primary_key=True)
    trick: Mapped[str | None] = mapped_column(String(10))


class DataclassJob(MappedAsDataclass, JobMixin, PriorityMixin, Base):
    __tablename__ = "style_dataclass"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str] = mapped_column(String(20), default="x")


class Model(SQLModel, registry=mapper_registry):
    metadata = metadata


class SQLModelJob(JobMixin, PriorityMixin, Model, table=True):
    __tablename__ = "style_sqlmodel"
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(default="x", max_length=20)


def job_columns() -> list[Column[Any]]:
    """List the columns of a table that the user wrote out."""
    return [
        Column("id", Integer, primary_key=True),
        Column("status", String(16), server_default="unclaimed", nullable=False),
        Column("owner", String(64)),
        Column("owner_date", timestamp_type()),
    ]


class Imperative(JobMixin):
    id: int


mapper_registry.map_imperatively(Imperative, Table("style_imperative", metadata, *job_columns()))


class Hybrid(JobMixin, Base):
    __table__ = Table("style_hybrid", metadata, *job_columns())


class Untyped(JobMixin, ScheduleMixin, declarative_base(metadata=metadata)):  # type: ignore[misc]  # made by a call
    __tablename__ = "style_untyped"
    id = Column(Integer, primary_key=True)


class UuidKey(JobMixin, Base):
    __tablename__ = "style_uuid"
    id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True, default=uuid.uuid4)


class StringKey(JobMixin, Base):
    __tablename__ = "style_string"
    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=lambda: str(uuid.uuid4()))


class CompositeKey(JobMixin, PriorityMixin, Base):
    __tablename__ = "style_composite"
    left: Mapped[int] = mapped_column(primary_key=True, default=1)
    right: Mapped[str] = mapped_column(String(10), primary_key=True, default="r")


class Renamed(JobMixin, PriorityMixin, Base):
    __tablename__ = "style_renamed"
    id: Mapped[int] = mapped_column(primary_key=True)
    status = mapped_column("job_status", String(20))
    priority = mapped_column("urgency", SmallInteger, nullable=False)


class Named(
    JobMixin.named(status="job_status", owner="job_owner", owner_date="job_date"),  # type: ignore[misc]  # a call
    RetryMixin.named(attempts="tries", last_error="why"),  # type: ignore[misc]  # a call
    Base,
):
    __tablename__ = "style_named"
    __queue_args__ = {"names": {"unclaimed": "new", "done": "shipped"}}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(10), default="paid")
    owner: Mapped[str | None] = mapped_column(Text)


class LongName(JobMixin, Base):
    __tablename__ = "style_" + "long_" * 11
    id: Mapped[int] = mapped_column(primary_key=True)


STYLES = [
    Plain,
    EveryMixin,
    OfAbstract,
    Animal,
    Cat,
    Dog,
    DataclassJob,
    SQLModelJob,
    Imperative,
    Hybrid,
    Untyped,
    UuidKey,
    StringKey,
    CompositeKey,
    Renamed,
    Named,
    LongName,
]
