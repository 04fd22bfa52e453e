"""The styles of mapping that no class of tests.models has, for the tests of tables and of rows."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Integer, MetaData, SmallInteger, String, Table
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    mapped_column,
    registry,
)
from sqlmodel import Field, SQLModel

from sa_jobqueue import JobMixin, PriorityMixin, ScheduleMixin
from sa_jobqueue.migration import timestamp_type

metadata = MetaData()
mapper_registry = registry(metadata=metadata)


class Base(DeclarativeBase):
    registry = mapper_registry


class AbstractJob(JobMixin, Base):
    __abstract__ = True
    id: Mapped[int] = mapped_column(primary_key=True)


class OfAbstract(AbstractJob):
    __tablename__ = "style_of_abstract"
    __table_args__ = (sa.Index("style_own_index", "weight"), {"comment": "with table arguments"})
    weight: Mapped[int] = mapped_column(default=0)


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


class Renamed(JobMixin, PriorityMixin, Base):
    __tablename__ = "style_renamed"
    id: Mapped[int] = mapped_column(primary_key=True)
    status = mapped_column("job_status", String(20))
    priority = mapped_column("urgency", SmallInteger, nullable=False)


class LongName(JobMixin, Base):
    __tablename__ = "style_" + "long_" * 11
    id: Mapped[int] = mapped_column(primary_key=True)


STYLES = [OfAbstract, DataclassJob, SQLModelJob, Imperative, Hybrid, Untyped, Renamed, LongName]
