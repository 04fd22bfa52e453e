"""A worker is an owner for as long as it runs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Owner, OwnerState, UnsupportedDatabase, owner_state
from sa_jobqueue.worker import Worker
from tests.contract.worker.support import own_database, owners, work
from tests.models import Email, add_emails
from tests.support import SERVERS, cut_connections, until, variables_hidden

SOON = timedelta(milliseconds=20)


def test_a_worker_is_an_owner_for_as_long_as_it_runs(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    seen: list[OwnerState] = []

    def handler(email: Email) -> None:
        with Session(engine) as own:
            seen.append(owner_state(own, str(email.owner)))

    work(engine, JobQueue(Email), handler)

    (name,) = owners(session)
    assert str(name).split("~")[0].endswith(f"-{os.getpid()}")
    assert seen == [OwnerState.ALIVE]
    assert owner_state(session, str(name)) is OwnerState.DEAD


def test_an_owner_may_be_given(engine: Engine, session: Session) -> None:
    add_emails(session, "a", "b", "c")

    with Owner(engine, "mailer") as owner:
        for given in (owner, "plain", 7):
            worker = Worker(engine, JobQueue(Email), lambda email: worker.stop(), owner=given)  # noqa: B023 - run at once
            worker.run()
        assert owner_state(session, owner.name) is OwnerState.ALIVE
        assert owners(session) == [owner.name, "plain", "7"]


@pytest.mark.only_on("mysql", "mariadb")
def test_a_server_that_knows_no_owners_gets_plain_names_and_one_line_in_the_log(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    add_emails(session, "a")

    with variables_hidden(engine):
        work(engine, JobQueue(Email), lambda email: None)

    (name,) = owners(session)
    assert "~" not in str(name)
    (told,) = [text for text in caplog.messages if "only after their lease" in text]
    assert "does not tell which owners are alive, since it does not show" in told


def test_a_worker_uses_a_plain_name_where_it_can_have_no_owner(
    engine: Engine,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(owner: Owner) -> None:
        raise UnsupportedDatabase("a pooler stands in between")

    monkeypatch.setattr(Owner, "open", refuse)
    add_emails(session, "a")

    work(engine, JobQueue(Email), lambda email: None)

    (name,) = owners(session)
    assert "~" not in str(name)
    (warning,) = [record for record in caplog.records if record.name == "sa_jobqueue.worker"]
    assert warning.levelname == "WARNING"
    assert "a pooler stands in between" in warning.getMessage()


def has_lost_its_lock(worker: Worker[Any]) -> bool:
    """Tell whether the loss was noticed; do not let the owner take a new name."""
    owner = worker.owner
    assert isinstance(owner, Owner)
    assert owner._held is not None
    return owner._held.lock.lost


@pytest.mark.only_on(*SERVERS)
def test_a_worker_whose_lock_was_lost_goes_on_under_a_new_name(
    fresh_database: URL, db_alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    with own_database(fresh_database) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b", "c")
        engine.dispose()

        def handler(email: Email) -> None:
            if email.recipient == "a":
                cut_connections(fresh_database, db_alias)
                until(lambda: has_lost_its_lock(worker))

        worker = Worker(engine, JobQueue(Email), handler, limit=2, drain=True, poll=SOON)
        worker.run()

        with Session(engine) as session:
            first, second, third = owners(session)
            assert first == second != third
            assert set(session.scalars(select(Email.status))) == {"done"}
        assert any("has lost its lock" in record.getMessage() for record in caplog.records)


@pytest.mark.only_on(*SERVERS)
def test_a_commit_in_doubt_is_looked_up_under_the_name_of_its_claim(
    fresh_database: URL, db_alias: str
) -> None:
    """The answer to a COMMIT is lost, and the owner's lock with it."""
    handled: list[str] = []
    to_break = [1]
    with own_database(fresh_database) as engine, pytest.MonkeyPatch.context() as patch:
        with Session(engine) as session:
            add_emails(session, "a", "b", "c")
        engine.dispose()
        commit = engine.dialect.do_commit

        def commit_and_break(connection: Any) -> None:
            commit(connection)
            if handled and to_break:
                to_break.clear()
                cut_connections(fresh_database, db_alias)
                until(lambda: has_lost_its_lock(worker))
                error = OperationalError("COMMIT", {}, Exception("gone"))
                error.connection_invalidated = True
                raise error

        patch.setattr(engine.dialect, "do_commit", commit_and_break)
        queue = JobQueue(Email)
        worker = Worker(
            engine, queue, lambda email: handled.append(email.recipient), drain=True, poll=SOON
        )
        worker.run()

        assert handled == ["a", "b", "c"]
        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


# A server that is away when a lock is taken


class Refusals:
    """Refuse some connections, as the driver does while its server is away."""

    def __init__(self, engine: Engine, times: int) -> None:
        self.left = times
        self._engine = engine
        self._connect = engine.dialect.connect

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self._engine.dialect.loaded_dbapi.OperationalError(2003, "connection refused")
        return self._connect(*args, **kwargs)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_worker_that_starts_waits_for_its_server(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    add_emails(session, "a")
    refusals = Refusals(engine, times)
    engine.dispose()
    monkeypatch.setattr(engine.dialect, "connect", refusals.connect)

    work(engine, JobQueue(Email), lambda email: None)

    assert refusals.left == 0
    assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.only_on(*SERVERS)
def test_a_worker_that_takes_a_new_lock_waits_for_its_server(
    fresh_database: URL, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_database(fresh_database) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b", "c")
        engine.dispose()
        refusals = Refusals(engine, 4)

        def handler(email: Email) -> None:
            if email.recipient == "a":
                cut_connections(fresh_database, db_alias)
                until(lambda: has_lost_its_lock(worker))
                monkeypatch.setattr(engine.dialect, "connect", refusals.connect)

        worker = Worker(engine, JobQueue(Email), handler, drain=True, poll=SOON)
        worker.run()

        assert refusals.left == 0
        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.only_on(*SERVERS)
def test_handled_jobs_are_finished_before_a_new_lock_is_taken(
    fresh_database: URL, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new lock may take minutes, and meanwhile others would reap them."""
    statuses: list[str] = []
    take = Owner._take

    def note_and_take(owner: Owner) -> Any:
        with Session(owner.engine) as session:
            statuses.extend(session.scalars(select(Email.status).order_by(Email.id)))
        return take(owner)

    with own_database(fresh_database) as engine:
        with Session(engine) as session:
            add_emails(session, "a", "b")
        engine.dispose()

        def handler(email: Email) -> None:
            if email.recipient == "a":
                cut_connections(fresh_database, db_alias)
                until(lambda: has_lost_its_lock(worker))
                monkeypatch.setattr(Owner, "_take", note_and_take)

        worker = Worker(engine, JobQueue(Email), handler, drain=True, poll=SOON)
        worker.run()

        assert statuses == ["done", "unclaimed"]
        with Session(engine) as session:
            assert set(session.scalars(select(Email.status))) == {"done"}


@pytest.mark.only_on(*SERVERS)
def test_a_lock_that_dies_between_two_looks_is_taken_again(
    fresh_database: URL, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_database(fresh_database) as engine:
        with Session(engine) as session:
            add_emails(session, "a")
        engine.dispose()
        look, cut = Owner._check_seen, [1]

        def cut_and_look(owner: Owner, held: Any, server: Any) -> None:
            if cut:
                cut.clear()
                cut_connections(fresh_database, db_alias)
            look(owner, held, server)

        monkeypatch.setattr(Owner, "_check_seen", cut_and_look)
        work(engine, JobQueue(Email), lambda email: None)

        with Session(engine) as session:
            (name,) = owners(session)
            assert "~" in str(name)
            assert set(session.scalars(select(Email.status))) == {"done"}
