"""Users with few privileges see owners alive or dead, or know nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, UnsupportedDatabase, claim, connection_owner, owner_state
from tests.contract.owners.restricted_user import administering, restricted_user
from tests.contract.owners.support import ALIVE, DEAD, UNKNOWN, connected, wait_until
from tests.models import Base, Email, add_emails
from tests.support import SERVERS


@pytest.fixture
def restricted(engine: Engine) -> Iterator[Engine]:
    """An engine of a user who may read and write the tables, and nothing else."""
    with restricted_user(engine) as theirs:
        yield theirs


@pytest.mark.only_on(*SERVERS)
def test_users_see_which_owners_of_each_other_are_alive_and_which_are_dead(
    engine: Engine, session: Session, restricted: Engine
) -> None:
    add_emails(session, "a")
    with Session(restricted) as theirs:
        for owning, asking in [(engine, theirs), (restricted, session)]:
            with Owner(owning) as owner:
                name = owner.name
                assert owner_state(asking, name) is ALIVE
                (email,) = claim(theirs, Email, owner=owner)
                assert email.owner == name
                theirs.rollback()
            assert owner_state(asking, name) is DEAD


@pytest.mark.only_on(*SERVERS)
def test_a_restricted_user_sees_its_own_connections_and_never_that_anothers_is_gone(
    engine: Engine, session: Session, restricted: Engine, db_alias: str
) -> None:
    with (
        connected(engine) as (_, bound),
        connected(restricted) as (_, own),
        Session(restricted) as theirs,
    ):
        name = connection_owner(bound)
        assert owner_state(theirs, name) is UNKNOWN
        assert owner_state(theirs, connection_owner(own)) is ALIVE
    wait_until(session, name, DEAD)

    with Session(restricted) as theirs:
        assert owner_state(theirs, name) is (DEAD if db_alias == "postgresql" else UNKNOWN)


@pytest.mark.only_on("mysql", "mariadb")
def test_a_privilege_that_a_connection_does_not_have_yet_is_not_counted_on(
    engine: Engine, restricted: Engine
) -> None:
    """The servers show the privilege at once, and honour it from the next connection on."""
    with connected(engine) as (_, bound), Session(restricted) as theirs:
        name = connection_owner(bound)
        theirs.connection()
        with administering(engine) as run:
            run(f"GRANT PROCESS ON *.* TO {restricted.url.username}")

        before = owner_state(theirs, name)
        theirs.close()

        assert (before, owner_state(theirs, name)) == (UNKNOWN, ALIVE)


@pytest.mark.only_on("postgresql")
def test_the_same_server_is_known_to_users_who_may_not_ask_for_its_identifier(
    fresh_database: URL,
) -> None:
    """All of these users go by the start of the server."""
    engine = create_engine(fresh_database)
    Base.metadata.create_all(engine)
    with administering(engine) as run, restricted_user(engine) as theirs:
        run("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        with Owner(theirs) as owner, Session(theirs) as own, Session(engine) as superuser:
            name = owner.name
            seen = (owner_state(own, name), owner_state(superuser, name))
            owner.close()

            assert (owner_state(own, name), owner_state(superuser, name)) == (DEAD, UNKNOWN)
            assert seen == (ALIVE, UNKNOWN)
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_a_user_who_may_not_see_locks_has_no_owners_and_finds_all_unknown(
    fresh_database: URL,
) -> None:
    engine = create_engine(fresh_database)
    with administering(engine) as run, restricted_user(engine) as theirs:
        run("REVOKE SELECT ON pg_locks FROM PUBLIC")
        with Owner(engine) as owner, Session(theirs) as own:
            assert owner_state(own, owner.name) is UNKNOWN
        with pytest.raises(UnsupportedDatabase, match="GRANT SELECT ON pg_locks"):
            Owner(theirs).open()
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_a_connection_that_hides_itself_is_no_owner(engine: Engine, restricted: Engine) -> None:
    """After SET ROLE a connection does not see when it began."""
    with connected(engine) as (connection, bound):
        connection.exec_driver_sql(f"SET ROLE {restricted.url.username}")

        with pytest.raises(UnsupportedDatabase, match=r"use Owner\(engine\)"):
            connection_owner(bound)
