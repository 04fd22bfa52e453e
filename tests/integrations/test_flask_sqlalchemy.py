"""Flask-SQLAlchemy: its session sends each class to the engine of its bind key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, claim, complete, enqueue

flask = pytest.importorskip("flask")
flask_sqlalchemy = pytest.importorskip("flask_sqlalchemy")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    made = flask.Flask(__name__, instance_path=str(tmp_path))
    made.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'main.db'}"
    made.config["SQLALCHEMY_BINDS"] = {"jobs": f"sqlite:///{tmp_path / 'jobs.db'}"}
    with made.app_context():
        yield made


@pytest.mark.only_on("sqlite")
def test_jobs_of_a_bind_are_claimed_in_its_database(app: Any, db_alias: str) -> None:
    class Base(DeclarativeBase):
        pass

    db = flask_sqlalchemy.SQLAlchemy(model_class=Base)

    class Mail(JobMixin, db.Model):  # type: ignore[name-defined,misc]  # made at run time
        __bind_key__ = "jobs"
        id: Mapped[int] = mapped_column(primary_key=True)

    db.init_app(app)
    db.create_all()
    enqueue(db.session, Mail, [{}, {}])
    db.session.commit()

    claimed = claim(db.session, Mail, owner="w", limit=1)
    db.session.commit()
    complete(db.session, claimed)
    db.session.commit()

    with db.engines["jobs"].connect() as connection:
        statuses = connection.execute(select(Mail.status).order_by(Mail.id)).scalars().all()
    assert statuses == ["done", "unclaimed"]
    for engine in db.engines.values():
        engine.dispose()
