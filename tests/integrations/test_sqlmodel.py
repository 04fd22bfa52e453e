"""SQLModel: its classes are queues, and its Session takes every verb."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import registry

from sa_jobqueue import JobMixin, claim, complete, enqueue, fail

sqlmodel = pytest.importorskip("sqlmodel")


def test_a_sqlmodel_session_claims_and_finishes(engine: Engine) -> None:
    from sqlmodel import Field, Session, SQLModel, select

    class Base(SQLModel, registry=registry()):
        pass

    class Parcel(JobMixin, Base, table=True):
        __tablename__ = "integration_parcel"
        id: int | None = Field(default=None, primary_key=True)
        name: str = Field(max_length=20)

    Base.metadata.create_all(engine)
    try:
        with Session(engine) as session:
            enqueue(session, Parcel, [{"name": "a"}, {"name": "b"}])
            session.commit()
            first, second = claim(session, Parcel, owner="w", limit=2)
            complete(session, first)
            fail(session, second)
            session.commit()
            found = session.exec(select(Parcel).order_by(Parcel.name)).all()
            assert [(parcel.name, parcel.status) for parcel in found] == [
                ("a", "done"),
                ("b", "failed"),
            ]
    finally:
        Base.metadata.drop_all(engine)
