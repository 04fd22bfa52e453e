"""Every contract test runs on every database; with `strategy`, for each of its strategies.

``@pytest.mark.strategies("auto")`` is for tests in which rows are claimed and the way to claim
cannot matter, as it cannot to what a finish writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Claim, claim, start_round
from tests.models import Base, Email, add_emails
from tests.support import ALL_STRATEGIES, STRATEGIES, as_new, make_engine, with_empty_tables


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "strategy" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("strategies")
        metafunc.parametrize("strategy", ALL_STRATEGIES if marker is None else marker.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    impossible = [item for item in items if not _possible(item)]
    if impossible:
        items[:] = [item for item in items if _possible(item)]
        config.hook.pytest_deselected(items=impossible)


def _possible(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    strategy, alias = params.get("strategy"), params.get("db_alias")
    if strategy in (None, "auto") or alias is None:
        return True
    return strategy in STRATEGIES.get(alias, ())


@pytest.fixture(scope="session")
def shared_engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the tables of tests.models, for the whole run."""
    engine = make_engine(db_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine with empty tables."""
    return with_empty_tables(as_new(shared_engine), Base.metadata)


@pytest.fixture
def own_engine(fresh_database: URL) -> Iterator[Engine]:
    """An engine on a database that no other test has, with the tables of tests.models."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def new_session(engine: Engine) -> Iterator[Callable[..., Session]]:
    """Open sessions that are closed when the test ends."""
    opened: list[Session] = []

    def open_session(bind: Any = engine, **options: Any) -> Session:
        options.setdefault("expire_on_commit", False)
        opened.append(Session(bind, **options))
        return opened[-1]

    yield open_session
    for session in reversed(opened):
        session.close()


@pytest.fixture
def session(new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture
def other(new_session: Callable[..., Session]) -> Session:
    """A second session, on a connection of its own."""
    return new_session()


Start = Callable[..., int]


@pytest.fixture
def start(session: Session) -> Start:
    """Start a round in a transaction of a session, and commit."""

    def start_and_commit(*args: Any, **options: Any) -> int:
        number = start_round(session, *args, **options)
        session.commit()
        return number

    return start_and_commit


@pytest.fixture(params=["session", "engine"])
def start_either(
    request: pytest.FixtureRequest, engine: Engine, session: Session, start: Start
) -> Start:
    """Start a round in a session or by an engine."""

    def start_by_engine(*args: Any, **options: Any) -> int:
        session.commit()
        number = start_round(engine, *args, **options)
        session.expire_all()
        return number

    return start_by_engine if request.param == "engine" else start


@pytest.fixture
def claimed(session: Session, strategy: str) -> Claim[Email]:
    """Give the committed claim of three emails by the owner w."""
    add_emails(session, "a", "b", "c")
    claimed = claim(session, Email, owner="w", limit=3, strategy=strategy)
    session.commit()
    return claimed
