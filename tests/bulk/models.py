"""The tables that the tests load, besides those of tests.models."""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import JSON, DateTime, ForeignKey, Numeric, String, Uuid
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue.bulk import load_table


class Base(DeclarativeBase):
    pass


LOG = load_table(Base.metadata)


class Item(Base):
    """The plainest table: a number and a text, under a name of its own."""

    __tablename__ = "bulk_item"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None] = mapped_column("item_text", String(50))


class Thing(Base):
    """Values of many types, generated keys, and a default of each kind."""

    __tablename__ = "bulk_thing"
    id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True)
    number: Mapped[int | None]
    real: Mapped[float | None]
    amount: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    flag: Mapped[bool | None]
    at: Mapped[datetime | None] = mapped_column(
        DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    text: Mapped[str | None] = mapped_column(String(100))
    data: Mapped[bytes | None]
    document: Mapped[Any | None] = mapped_column(JSON)
    constant: Mapped[int] = mapped_column(default=7)
    on_server: Mapped[int] = mapped_column(server_default="8")


class Named(Base):
    """A text as key: the server decides which texts are equal."""

    __tablename__ = "bulk_named"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    text: Mapped[str | None] = mapped_column(String(50))


class Rounded(Base):
    """A key that servers round to fewer digits."""

    __tablename__ = "bulk_rounded"
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2), primary_key=True, autoincrement=False)


class Person(Base):
    """Rows that refer to rows before them."""

    __tablename__ = "bulk_person"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    mother: Mapped[int | None] = mapped_column(ForeignKey("bulk_person.id"))
