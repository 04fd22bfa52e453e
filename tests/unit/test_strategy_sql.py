"""The SQL of the other strategies and of strict order, and what holds for every claim."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Column, DateTime, ForeignKey, Integer, String, Table
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler

from sa_jobqueue import JobMixin, JobQueue, RetryMixin, UnsupportedDatabase, claim_statements
from tests.support import STRATEGIES
from tests.unit.sql import (
    MARK_EMAILS,
    Base,
    Email,
    Seat,
    Task,
    claim_sql,
    compiled,
    dialect_of,
    lines,
    one_line,
)

PAIRS = [(alias, strategy) for alias, names in STRATEGIES.items() for strategy in names]


class Upload(JobMixin, RetryMixin, Base):
    __tablename__ = "upload"
    id: Mapped[int] = mapped_column(primary_key=True)


class Message(JobMixin, Base):
    __tablename__ = "message"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "names": {"unclaimed": "unsent", "claimed": "sending"},
        "order_by": ["weight desc"],
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    weight: Mapped[int]


class Animal(JobMixin, Base):
    __tablename__ = "animal"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "a"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(3))


class Dog(Animal):
    __tablename__ = "dog"
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(ForeignKey("animal.id"), primary_key=True)


class Guest(Base):
    """A class without the mixin."""

    __tablename__ = "guest"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    seats: Mapped[int]


class Concert(Base):
    __tablename__ = "concert"
    hall: Mapped[int] = mapped_column(primary_key=True)
    begins: Mapped[datetime] = mapped_column(DateTime(timezone=True), primary_key=True)


MARK_EMAILS_BY_ARRAY = """
    UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND
        CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1
"""


# The other strategies


def test_candidates_are_read_without_locks_and_then_locked_by_key_and_checked_again() -> None:
    criterion = Email.recipient.like("a%")

    assert claim_sql(Email, "postgresql", criterion, strategy="candidates") == lines(
        """
        SELECT email.id FROM email
        WHERE email.status IN ('unclaimed', 'unclaimed') AND email.recipient LIKE :recipient_1
        ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
        """,
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date,
            statement_timestamp() AS sa_jobqueue_date
        FROM email
        WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[]))
            AND email.status = 'unclaimed'
            AND email.recipient LIKE :recipient_1
        ORDER BY email.id
        FOR NO KEY UPDATE OF email SKIP LOCKED
        """,
        MARK_EMAILS_BY_ARRAY,
    )


def test_a_held_claim_is_the_locking_read_alone() -> None:
    assert claim_sql(Email, "postgresql", strategy="held") == lines(
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date,
            statement_timestamp() AS sa_jobqueue_date
        FROM email
        WHERE email.status IN ('unclaimed', 'unclaimed')
        ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
        FOR NO KEY UPDATE OF email SKIP LOCKED
        """
    )


def test_an_advisory_claim_locks_behind_a_fence_and_checks_again() -> None:
    assert claim_sql(Email, "postgresql", Email.recipient == "a", strategy="advisory") == lines(
        """
        SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1,
            sa_jobqueue_candidates.sa_jobqueue_2
        FROM (
            SELECT email.id AS sa_jobqueue_0, CAST(email.tableoid AS INTEGER) AS sa_jobqueue_1,
                CASE WHEN (email.id BETWEEN -2147483648 AND 2147483647)
                    THEN CAST(email.id AS INTEGER) ELSE hash_record(row(email.id))
                END AS sa_jobqueue_2
            FROM email
            WHERE email.status IN ('unclaimed', 'unclaimed') AND email.recipient = :recipient_1
                AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted')
                AND coalesce(:sa_jobqueue_backend, pg_backend_pid()) = pg_backend_pid()
            ORDER BY email.status, email.id LIMIT ALL OFFSET 0
        ) AS sa_jobqueue_candidates
        WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1,
            sa_jobqueue_candidates.sa_jobqueue_2)
        LIMIT :sa_jobqueue_limit
        """,
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date
        FROM email
        WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[]))
            AND email.status = 'unclaimed'
            AND email.recipient = :recipient_1
        """,
    )


def test_an_advisory_claim_of_any_class_has_no_order_but_the_callers() -> None:
    unordered, _ = claim_sql(Guest, "postgresql", Guest.seats > 1, strategy="advisory")
    queue = JobQueue(Guest, order_by=Guest.seats.desc(), strategy="advisory")
    ordered, _ = claim_sql(queue, "postgresql")

    assert "ORDER BY" not in unordered
    assert "ORDER BY guest.seats DESC, guest.name LIMIT ALL OFFSET 0" in ordered


def test_an_advisory_claim_checks_all_that_it_looked_for() -> None:
    first, locking, checking = claim_sql(Task, "postgresql", Task.id > 5, strategy="advisory")

    assert "ORDER BY task.priority" in first
    for sql in (locking, checking):
        for criterion in (
            "task.status = 'unclaimed'",
            "task.run_at <= statement_timestamp()",
            "task.id > :id_1",
        ):
            assert criterion in sql


@pytest.mark.parametrize(
    ("entity", "version", "hashed"),
    [
        (Seat, (17, 0), "hash_record(row(seat.hall, seat.number))"),
        (Seat, (13, 0), "hashtext(CAST(row(seat.hall, seat.number) AS VARCHAR))"),
        (Guest, (17, 0), "hash_record(row(guest.name))"),
    ],
)
def test_keys_that_are_no_integers_are_hashed_by_the_server(
    entity: Any, version: tuple[int, ...], hashed: str
) -> None:
    dialect: Any = dialect_of("postgresql")
    dialect.server_version_info = version

    statements = claim_statements(entity, dialect=dialect, strategy="advisory")

    locking: Any = statements[0]
    assert f"{hashed} AS sa_jobqueue_" in one_line(str(locking.compile(dialect=dialect)))


def test_a_key_whose_text_is_not_always_the_same_needs_a_server_that_hashes_values() -> None:
    dialect: Any = dialect_of("postgresql")
    dialect.server_version_info = (13, 9)

    with pytest.raises(UnsupportedDatabase, match=r"before PostgreSQL 14 only .* upgrade"):
        claim_statements(Concert, dialect=dialect, strategy="advisory")


@pytest.mark.parametrize("alias", ["mysql", "mariadb", "sqlite"])
def test_other_databases_have_no_advisory_claims(alias: str) -> None:
    with pytest.raises(UnsupportedDatabase, match="use strategy='auto'"):
        claim_sql(Email, alias, strategy="advisory")


def test_an_advisory_claim_writes_nothing() -> None:
    texts = " ".join(claim_sql(Email, "postgresql", strategy="advisory"))

    assert not re.search(r"UPDATE|INSERT|FOR |DELETE", texts)


def test_update_then_select_marks_first_and_reads_back_by_owner_and_time() -> None:
    savepoint, update, read = claim_sql(Email, "mysql", strategy="update_then_select")

    assert savepoint == "SAVEPOINT sa_jobqueue_claim"
    assert update == one_line(
        """
        UPDATE email FORCE INDEX (ix_email_claim)
        SET status='claimed', owner=:sa_jobqueue_owner,
            owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(
                MICROSECOND, '1970-01-01',
                (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
        WHERE email.status = 'unclaimed' ORDER BY email.id LIMIT :sa_jobqueue_limit
        """
    )
    assert read == one_line(
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date
        FROM email
        WHERE email.status = 'claimed' AND email.owner = :sa_jobqueue_owner
            AND email.owner_date = :sa_jobqueue_owner_date
        ORDER BY email.id
        """
    )


def strict_sql(alias: str) -> list[str]:
    return claim_sql(JobQueue(Email, strict_order=True), alias)


# Strict order


def test_postgresql_waits_for_the_turn_in_a_statement_before_the_first_look() -> None:
    turn, *others = strict_sql("postgresql")

    assert turn == one_line(
        """
        SELECT sa_jobqueue_settings.keeps_snapshot,
            set_config('lock_timeout', CASE WHEN (sa_jobqueue_settings.lock_timeout = '0') THEN
                '50000'
                ELSE sa_jobqueue_settings.lock_timeout END, true) AS set_config_1,
            CASE WHEN NOT sa_jobqueue_settings.keeps_snapshot THEN pg_advisory_xact_lock(
                7303, CAST(CAST(CAST('email' AS regclass) AS oid) AS integer)) END AS anon_1,
            set_config('lock_timeout', sa_jobqueue_settings.lock_timeout, true) AS set_config_2
        FROM (
            SELECT current_setting('lock_timeout') AS lock_timeout,
                current_setting('transaction_isolation')
                    IN ('repeatable read', 'serializable') AS keeps_snapshot
            LIMIT ALL OFFSET 0
        ) AS sa_jobqueue_settings
        """
    )
    assert others == lines(
        """
        SELECT email.id FROM email
        WHERE email.status IN ('unclaimed', 'unclaimed')
        ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
        """,
        """
        SELECT email.id FROM email
        WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[]))
            AND email.status = 'unclaimed' ORDER BY email.id
        FOR NO KEY UPDATE OF email SKIP LOCKED
        """,
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date,
            statement_timestamp() AS sa_jobqueue_date
        FROM email
        WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[]))
            AND email.status = 'unclaimed' ORDER BY email.id
        FOR NO KEY UPDATE OF email SKIP LOCKED
        """,
        MARK_EMAILS_BY_ARRAY,
    )


@pytest.mark.parametrize("alias", ["mysql", "mariadb"])
def test_innodb_asks_for_the_next_job_by_its_key_before_it_locks_the_others(alias: str) -> None:
    assert strict_sql(alias) == lines(
        """
        SELECT email.id FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
        WHERE email.status = 'unclaimed' ORDER BY email.id LIMIT :sa_jobqueue_limit
        """,
        """
        SELECT email.id FROM email FORCE INDEX (PRIMARY)
        WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed' ORDER BY email.id
        FOR UPDATE SKIP LOCKED
        """,
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date,
            CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
        FROM email FORCE INDEX (PRIMARY)
        WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed' ORDER BY email.id
        FOR UPDATE SKIP LOCKED
        """,
        MARK_EMAILS,
    )


def test_sqlite_needs_nothing_more_for_strict_order() -> None:
    assert strict_sql("sqlite") == claim_sql(Email, "sqlite")


def test_a_server_without_skip_locked_walks_in_order_and_waits() -> None:
    old: Any = dialect_of("mysql")
    old.server_version_info = (5, 7, 44)

    statements: list[Any] = claim_statements(JobQueue(Email, strict_order=True), dialect=old)

    updates = [one_line(str(sql.compile(dialect=old))) for sql in statements]
    assert updates == claim_sql(Email, "mysql", strategy="update_then_select")


# What holds for every claim


@pytest.mark.parametrize(("alias", "strategy"), PAIRS)
def test_statuses_stand_in_the_sql_as_literals(alias: str, strategy: str) -> None:
    statements = compiled(Message, alias, strategy=strategy)

    texts = " ".join(claim_sql(Message, alias, strategy=strategy))
    assert "message.status = 'unsent'" in texts
    assert ("status='sending'" in texts) is (strategy != "held")
    assert not {"unsent", "sending"} & {
        value for sql in statements for value in sql.params.values()
    }


@pytest.mark.parametrize(("alias", "strategy"), PAIRS)
@pytest.mark.parametrize("entity", [Email, Task, Upload, Seat, Message])
def test_no_time_of_the_client_is_bound(entity: Any, alias: str, strategy: str) -> None:
    first, *others = compiled(entity, alias, strategy=strategy)

    assert times_bound(first) == set()
    # The server told this time: in the locking read, or as the last insert id.
    assert all(times_bound(sql) <= {"sa_jobqueue_owner_date"} for sql in others)


def times_bound(sql: SQLCompiler) -> set[str]:
    """Name the parameters that are points in time."""
    return {name for name, bound in sql.binds.items() if isinstance(bound.type, DateTime)}


@pytest.mark.parametrize(("alias", "strategy"), PAIRS)
@pytest.mark.parametrize("entity", [Email, Task, Upload, Seat, Message])
def test_every_statement_that_picks_rows_is_limited(entity: Any, alias: str, strategy: str) -> None:
    statements = claim_sql(entity, alias, strategy=strategy)

    by_keys = (":sa_jobqueue_keys", "sa_jobqueue_owner_date", "SAVEPOINT")
    picking = [sql for sql in statements if not any(text in sql for text in by_keys)]
    assert picking
    assert all("LIMIT :" in sql for sql in picking)


@pytest.mark.parametrize("entity", [Email, Task, Upload, Seat, Message])
def test_a_locking_subselect_of_an_update_runs_once(entity: Any) -> None:
    (claim,) = claim_sql(entity, "postgresql")

    picked, _, rest = claim.partition(" SKIP LOCKED")
    assert "= any(array((SELECT" in picked or "picked AS MATERIALIZED (SELECT" in picked
    assert "SKIP LOCKED" not in rest
    assert " IN (SELECT" not in claim


@pytest.mark.parametrize(("alias", "strategy"), PAIRS)
def test_the_order_of_the_class_is_the_order_of_the_claim(alias: str, strategy: str) -> None:
    texts = " ".join(claim_sql(Message, alias, strategy=strategy))

    assert "ORDER BY message.weight DESC, message.id" in texts


@pytest.mark.parametrize(("alias", "strategy"), PAIRS)
def test_a_joined_class_is_ordered_by_the_key_that_the_claim_index_has(
    alias: str, strategy: str
) -> None:
    texts = " ".join(claim_sql(Dog, alias, strategy=strategy))

    # Ordered by dog.id it would be sorted, and InnoDB keeps all rows locked that it sorts.
    assert "ORDER BY animal.id" in texts.replace("animal.status, ", "")
    assert "ORDER BY dog.id" not in texts.replace("animal.status, ", "")


@pytest.mark.parametrize("alias", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_a_claim_counts_the_attempt(alias: str) -> None:
    texts = " ".join(claim_sql(Upload, alias))

    assert "attempts=(upload.attempts + :attempts_1)" in texts
    assert "ORDER BY upload.run_at, upload.id" in texts


def test_a_queue_prints_the_statements_that_it_runs() -> None:
    queue = JobQueue(Email, Email.recipient == "a", order_by=Email.recipient, strategy="held")

    (locking,) = claim_sql(queue, "postgresql")

    assert "AND email.recipient = :recipient_1 ORDER BY email.recipient, email.id" in locking


class Ticket(JobMixin, Base):
    """A table without a primary key of its own."""

    __table__ = Table(
        "ticket",
        Base.metadata,
        Column("number", Integer, unique=True, nullable=False),
        *(
            Column(name, kind)
            for name, kind in (
                ("status", String(16)),
                ("owner", String(64)),
                ("owner_date", DateTime(timezone=True)),
            )
        ),
    )
    __mapper_args__ = {"primary_key": [__table__.c.number]}  # noqa: RUF012 - SQLAlchemy's way


@pytest.mark.parametrize("alias", ["mysql", "mariadb"])
def test_a_table_without_a_primary_key_is_not_bound_to_one(alias: str) -> None:
    assert "PRIMARY" not in " ".join(claim_sql(Ticket, alias))
