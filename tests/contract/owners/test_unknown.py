"""Where a server cannot tell whether an owner is alive, its state is unknown."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, OwnerState, UnsupportedDatabase, connection_owner, owner_state
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.innodb import owner_liveness as innodb_liveness
from sa_jobqueue.dialects.postgresql import owner_liveness as postgresql_liveness
from tests.contract.owners.support import connected, wait_until
from tests.support import SERVERS, make_engine

ALIVE, DEAD, UNKNOWN = OwnerState.ALIVE, OwnerState.DEAD, OwnerState.UNKNOWN


@pytest.fixture
def in_cluster(db_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server look like a node of a cluster."""
    if db_alias == "postgresql":
        standby = postgresql_liveness._DATABASE.replace("pg_is_in_recovery()", "true")
        monkeypatch.setattr(postgresql_liveness, "_DATABASE", standby)
    else:
        monkeypatch.setattr(
            innodb_liveness, "_IN_CLUSTER", ("datadir",)
        )  # a variable that is never empty


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("in_cluster")
def test_in_a_cluster_an_owner_is_alive_or_unknown(engine: Engine, session: Session) -> None:
    with Owner(engine) as owner:
        name = owner.name
        alive = owner_state(session, name)

    assert (alive, owner_state(session, name)) == (ALIVE, UNKNOWN)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("in_cluster")
def test_in_a_cluster_a_connection_is_alive_or_unknown(engine: Engine, session: Session) -> None:
    with connected(engine) as (_, bound):
        name = connection_owner(bound)
        alive = owner_state(session, name)
        session.rollback()

    assert alive is ALIVE
    wait_until(session, name, UNKNOWN)


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize(
    ("variables", "alone"),
    [
        ({}, True),
        ({"wsrep_provider": "none"}, True),
        ({"wsrep_provider": ""}, True),
        ({"wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, False),
        ({"group_replication_group_name": ""}, True),
        ({"group_replication_group_name": "3c1b5cbc-8e0d-4a7c-9a5a-0a2bb4e4ecb0"}, False),
    ],
)
def test_a_node_of_a_cluster_is_known_by_its_variables(
    session: Session, variables: dict[str, str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = session.connection()
    database = database_of(connection)
    rows = " UNION ALL ".join(
        f"SELECT '{name}' AS variable_name, '{value}' AS variable_value"
        for name, value in {"server_uuid": "1", "server_uid": "1", **variables}.items()
    )
    monkeypatch.setattr(type(database), "global_variables", f"({rows}) AS variables")

    server = database.server_of(connection)

    assert server is not None
    assert server.alone is alone


@pytest.mark.usefixtures("behind_pooler")
def test_behind_a_pooler_there_are_no_owners(engine: Engine) -> None:
    with pytest.raises(
        UnsupportedDatabase, match=r"through a pooler. Give an engine that connects"
    ):
        Owner(engine).open()


def test_behind_a_pooler_an_owner_is_alive_or_unknown(
    engine: Engine, session: Session, request: pytest.FixtureRequest
) -> None:
    with Owner(engine) as owner:
        name = owner.name
        request.getfixturevalue("behind_pooler")
        alive = owner_state(session, name)

    assert (alive, owner_state(session, name)) == (ALIVE, UNKNOWN)


def test_an_owner_leaves_the_pool_alone(engine: Engine) -> None:
    narrow = make_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=1)

    with Session(narrow) as session:
        session.connection()
        with Owner(narrow) as owner:
            assert owner_state(session, owner.name) is ALIVE
    narrow.dispose()


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("foreign", [1, 2], ids=["lock elsewhere", "others elsewhere"])
def test_an_engine_that_leads_to_several_databases_has_no_owners(
    engine: Engine, fresh_database: URL, foreign: int
) -> None:
    """As behind a load balancer: the lock is on one server and looked for on another."""
    dialect = engine.dialect
    urls = [fresh_database if number == foreign else engine.url for number in range(3)]
    made: list[URL] = []

    def connect() -> Any:
        made.append(urls[len(made) % 3])
        args, kwargs = dialect.create_connect_args(made[-1])
        return dialect.loaded_dbapi.connect(*args, **kwargs)

    split = create_engine(engine.url, creator=connect, poolclass=NullPool)
    split.connect().close()
    made.clear()

    with pytest.raises(UnsupportedDatabase, match="different servers or databases"):
        Owner(split).open()


@pytest.mark.only_on("sqlite")
def test_an_owner_of_a_file_that_no_url_names_is_seen_by_others(
    engine: Engine, session: Session
) -> None:
    file = engine.url.database or ""
    unnamed = create_engine("sqlite://", creator=lambda: sqlite3.connect(file))

    with Owner(unnamed) as owner:
        assert owner_state(session, owner.name) is ALIVE
    unnamed.dispose()


@pytest.mark.only_on("sqlite")
def test_an_engine_that_opens_another_file_than_its_url_names_has_no_owners(
    engine: Engine, tmp_path: Path
) -> None:
    """The locks would be beside one file, and looked for beside the other."""
    misnamed = create_engine(engine.url, creator=lambda: sqlite3.connect(tmp_path / "other.db"))

    with pytest.raises(UnsupportedDatabase, match="different servers or databases"):
        Owner(misnamed).open()
    misnamed.dispose()


@pytest.mark.only_on("sqlite")
def test_a_database_in_memory_has_owners_of_its_own() -> None:
    here, there = create_engine("sqlite://"), create_engine("sqlite://")

    with Owner(here) as owner, Session(here) as own, Session(there) as other:
        name = owner.name
        assert (owner_state(own, name), owner_state(other, name)) == (ALIVE, UNKNOWN)
        owner.close()
        assert (owner_state(own, name), owner_state(other, name)) == (DEAD, UNKNOWN)

    here.dispose()
    there.dispose()


@pytest.mark.only_on("sqlite")
def test_a_file_is_known_by_each_of_its_paths(engine: Engine, owner: Owner, tmp_path: Path) -> None:
    assert engine.url.database is not None
    link = tmp_path / "link.db"
    link.symlink_to(engine.url.database)
    linked = create_engine(f"sqlite:///{link}")

    with Session(linked) as session:
        assert owner_state(session, owner.name) is ALIVE
    linked.dispose()


@pytest.mark.only_on("sqlite")
def test_a_copy_of_a_file_is_another_database(engine: Engine, owner: Owner, tmp_path: Path) -> None:
    assert engine.url.database is not None
    # By another process: to close a file that was opened here drops SQLite's locks on it.
    subprocess.run(("cp", engine.url.database, tmp_path / "copy.db"), check=True)
    copied = create_engine(f"sqlite:///{tmp_path / 'copy.db'}")

    with Session(copied) as session:
        assert owner_state(session, owner.name) is UNKNOWN
    copied.dispose()
