"""Where a server cannot tell whether an owner is alive, its state is unknown."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, UnsupportedDatabase, connection_owner, owner_state
from tests.contract.owners.support import (
    ALIVE,
    DEAD,
    UNKNOWN,
    connected,
    rewritten,
    state_of,
    wait_until,
)
from tests.support import SERVERS, make_engine

#: What a server says of itself, and whether it stands alone.
PRIMARY_OR_STANDBY = {"false": True, "true": False}
VARIABLES: dict[tuple[str, str], bool] = {
    ("", ""): True,
    ("wsrep_provider", "none"): True,
    ("wsrep_provider", "/usr/lib/galera/libgalera_smm.so"): False,
    ("group_replication_group_name", ""): True,
    ("group_replication_group_name", "3c1b5cbc-8e0d-4a7c-9a5a-0a2bb4e4ecb0"): False,
}


def as_if_it_said(engine: Engine, said: Any) -> AbstractContextManager[None]:
    """Have the server say that it is a standby, or that it has these variables."""
    if engine.dialect.name == "postgresql":
        return rewritten(engine, r"pg_is_in_recovery\(\)", said)
    rows = " UNION ALL ".join(
        f"SELECT '{name}' AS variable_name, '{value}' AS variable_value"
        for name, value in {"server_uuid": "1", "server_uid": "1", said[0]: said[1]}.items()
    )
    return rewritten(engine, r"(?i)\w+_schema\.global_variables", f"({rows}) AS variables")


@pytest.mark.only_on(*SERVERS)
def test_in_a_cluster_owners_and_connections_are_alive_or_unknown(
    engine: Engine, db_alias: str
) -> None:
    said: dict[Any, bool] = PRIMARY_OR_STANDBY if db_alias == "postgresql" else VARIABLES
    for case, alone in said.items():
        gone = DEAD if alone else UNKNOWN
        with as_if_it_said(engine, case):
            with Owner(engine) as owner, connected(engine) as (_, bound):
                name, of_connection = owner.name, connection_owner(bound)
                assert state_of(engine, name) is ALIVE
                assert state_of(engine, of_connection) is ALIVE
            assert state_of(engine, name) is gone, case
            with Session(engine) as session:
                wait_until(session, of_connection, gone)


def test_behind_a_pooler_there_are_no_owners_and_others_are_alive_or_unknown(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    with Owner(engine) as owner:
        name = owner.name
        request.getfixturevalue("behind_pooler")
        assert state_of(engine, name) is ALIVE

    assert state_of(engine, name) is UNKNOWN
    with pytest.raises(
        UnsupportedDatabase, match=r"through a pooler. Give an engine that connects"
    ):
        Owner(engine).open()


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
def test_an_owner_of_a_file_is_known_by_each_of_its_paths_and_not_in_a_copy(
    engine: Engine, tmp_path: Path
) -> None:
    file = engine.url.database or ""
    (tmp_path / "link.db").symlink_to(file)
    # By another process: to close a file that was opened here drops SQLite's locks on it.
    subprocess.run(("cp", file, tmp_path / "copy.db"), check=True)
    unnamed = create_engine("sqlite://", creator=lambda: sqlite3.connect(file))
    linked, copied = (create_engine(f"sqlite:///{tmp_path / name}.db") for name in ("link", "copy"))

    with Owner(unnamed) as owner:
        states = [state_of(each, owner.name) for each in (engine, linked, copied)]

    assert states == [ALIVE, ALIVE, UNKNOWN]
    for each in (unnamed, linked, copied):
        each.dispose()


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

    with Owner(here) as owner:
        name = owner.name
        assert (state_of(here, name), state_of(there, name)) == (ALIVE, UNKNOWN)
    assert (state_of(here, name), state_of(there, name)) == (DEAD, UNKNOWN)

    here.dispose()
    there.dispose()
