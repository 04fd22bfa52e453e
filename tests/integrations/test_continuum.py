"""SQLAlchemy-Continuum versions what a flush writes, and verbs do not flush."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, mapped_column

from sa_jobqueue import JobMixin, claim, complete

continuum = pytest.importorskip("sqlalchemy_continuum")


@pytest.fixture
def versioned() -> Iterator[Any]:
    """Continuum, which listens to all mappers and sessions, for one test."""
    continuum.make_versioned(user_cls=None)
    yield continuum
    continuum.remove_versioning()


@pytest.mark.only_on("sqlite")
def test_claims_and_finishes_make_no_versions_and_flushed_changes_do(
    versioned: Any, db_alias: str
) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(JobMixin, Base):
        __tablename__ = "orders"
        __versioned__: ClassVar[dict[str, Any]] = {}
        versions: ClassVar[Any]  # added by Continuum
        id: Mapped[int] = mapped_column(primary_key=True)
        note: Mapped[str | None]

    configure_mappers()
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        order = Order(note="new")
        session.add(order)
        session.commit()
        complete(session, claim(session, Order, owner="w"))
        session.commit()
        assert (order.status, order.versions.count()) == ("done", 1)

        order.note = "paid"
        session.commit()
        assert order.versions.count() == 2
    engine.dispose()
