"""The SQL of claims, word by word and per dialect; no server is asked."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import String, func
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue import JobMixin, PriorityMixin, RoundMixin
from tests.unit.sql import MARK_EMAILS, Base, Email, Seat, Task, claim_sql, lines, one_line


class Visit(JobMixin, RoundMixin, Base):
    __tablename__ = "visit"
    __queue_args__ = {"equality": ["region"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[str] = mapped_column(String(10))


class Parcel(JobMixin, PriorityMixin, Base):
    __tablename__ = "parcel"
    id: Mapped[int] = mapped_column(primary_key=True)


# One statement, or a locking read and an UPDATE


def test_postgresql_claims_in_one_statement() -> None:
    assert claim_sql(Email, "postgresql") == lines(
        """
        WITH sa_jobqueue_claimed AS (
            UPDATE email
            SET status='claimed', owner=:sa_jobqueue_owner,
                owner_date=(SELECT clock_timestamp())
            WHERE email.id = any(array((
                SELECT email.id FROM email
                WHERE email.status IN ('unclaimed', 'unclaimed')
                ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
                FOR NO KEY UPDATE OF email SKIP LOCKED
            ))) AND
                CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1
            RETURNING email.id, email.recipient, email.status, email.owner, email.owner_date
        )
        SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.recipient, sa_jobqueue_claimed.status,
            sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
        FROM sa_jobqueue_claimed ORDER BY sa_jobqueue_claimed.id
        """
    )


def test_mysql_locks_by_the_claim_index_and_marks_by_key() -> None:
    assert claim_sql(Email, "mysql") == lines(
        """
        SELECT /*+ INDEX(email ix_email_claim) */
            email.id, email.recipient, email.status, email.owner, email.owner_date,
            CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
        FROM email
        WHERE email.status = 'unclaimed'
            AND email.id >= (
                SELECT min(sa_jobqueue_waiting.id) AS min_1 FROM email AS sa_jobqueue_waiting
                WHERE sa_jobqueue_waiting.status = 'unclaimed'
            )
        ORDER BY email.id LIMIT :sa_jobqueue_limit
        FOR UPDATE SKIP LOCKED
        """,
        MARK_EMAILS,
    )


def test_mariadb_locks_by_the_claim_index_and_marks_by_key() -> None:
    assert claim_sql(Email, "mariadb") == lines(
        """
        SELECT email.id, email.recipient, email.status, email.owner, email.owner_date,
            CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
        FROM email FORCE INDEX (ix_email_claim)
        WHERE email.status = 'unclaimed'
            AND email.id >= (
                SELECT min(sa_jobqueue_waiting.id) AS min_1 FROM email AS sa_jobqueue_waiting
                WHERE sa_jobqueue_waiting.status = 'unclaimed'
            )
        ORDER BY email.id LIMIT :sa_jobqueue_limit
        FOR UPDATE SKIP LOCKED
        """,
        MARK_EMAILS,
    )


# InnoDB: where the ready jobs begin


def test_the_first_ready_job_is_that_of_the_same_region_and_round() -> None:
    locking, _ = claim_sql(Visit, "mariadb", Visit.region == "eu", Visit.round == 3)

    first = one_line(
        """
        visit.id >= (
            SELECT min(sa_jobqueue_waiting.id) AS min_1 FROM visit AS sa_jobqueue_waiting
            WHERE sa_jobqueue_waiting.status = 'unclaimed'
                AND sa_jobqueue_waiting.region = :region_2
                AND sa_jobqueue_waiting.round = :round_2
        )
        """
    )
    assert first in locking


@pytest.mark.parametrize(
    ("entity", "where"),
    [
        pytest.param(Visit, [Visit.region == func.user(), Visit.round == 3], id="not a constant"),
        pytest.param(Visit, [Visit.region == "eu"], id="all rounds"),
        pytest.param(Parcel, [], id="priorities"),
        pytest.param(Seat, [], id="two columns"),
    ],
)
def test_the_first_ready_job_is_not_looked_up_where_one_look_would_not_do(
    entity: Any, where: list[Any]
) -> None:
    assert "min(" not in claim_sql(entity, "mariadb", *where, strategy="skip_locked")[0]


def test_sqlite_claims_in_one_statement() -> None:
    assert claim_sql(Email, "sqlite") == lines(
        """
        UPDATE email
        SET status='claimed', owner=:sa_jobqueue_owner,
            owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
        WHERE email.id IN (
            SELECT email.id FROM email
            WHERE email.status = 'unclaimed'
            ORDER BY email.id LIMIT :sa_jobqueue_limit OFFSET :param_1
        )
        RETURNING id, recipient, status, owner, owner_date
        """
    )


# Priorities and schedules: one priority at a time


def test_postgresql_goes_priority_by_priority_within_one_statement() -> None:
    assert claim_sql(Task, "postgresql") == lines(
        """
        WITH RECURSIVE sa_jobqueue_priorities(priority) AS (
            SELECT (
                SELECT sa_jobqueue_waiting.priority FROM task AS sa_jobqueue_waiting
                WHERE sa_jobqueue_waiting.status = 'unclaimed'
                ORDER BY sa_jobqueue_waiting.priority LIMIT :param_1
            ) AS priority
            UNION ALL
            SELECT (
                SELECT sa_jobqueue_waiting.priority FROM task AS sa_jobqueue_waiting
                WHERE sa_jobqueue_waiting.status = 'unclaimed'
                    AND (sa_jobqueue_waiting.status, sa_jobqueue_waiting.priority) > ('unclaimed',
                        sa_jobqueue_priorities.priority)
                ORDER BY sa_jobqueue_waiting.priority LIMIT :param_2
            ) AS anon_1
            FROM sa_jobqueue_priorities WHERE sa_jobqueue_priorities.priority IS NOT NULL
        ), sa_jobqueue_claimed AS (
            UPDATE task
            SET status='claimed', owner=:sa_jobqueue_owner,
                owner_date=(SELECT clock_timestamp())
            WHERE task.id = any(array((
                SELECT sa_jobqueue_due.id
                FROM sa_jobqueue_priorities JOIN LATERAL (
                    SELECT task.id AS id FROM task
                    WHERE task.status = 'unclaimed' AND task.priority =
                        sa_jobqueue_priorities.priority
                        AND task.run_at <= statement_timestamp()
                    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS sa_jobqueue_due ON true
                LIMIT :sa_jobqueue_limit
            ))) AND
                CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1
            RETURNING task.id, task.status, task.owner, task.owner_date, task.priority, task.run_at
        )
        SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner,
            sa_jobqueue_claimed.owner_date, sa_jobqueue_claimed.priority,
            sa_jobqueue_claimed.run_at
        FROM sa_jobqueue_claimed ORDER BY sa_jobqueue_claimed.priority, sa_jobqueue_claimed.run_at,
            sa_jobqueue_claimed.id
        """
    )


def test_mysql_asks_for_the_next_priority_and_locks_its_due_rows() -> None:
    assert claim_sql(Task, "mysql")[:2] == lines(
        """
        SELECT task.priority FROM task
        WHERE task.status = 'unclaimed' ORDER BY task.priority LIMIT :param_1
        """,
        """
        SELECT /*+ INDEX(task ix_task_claim) */
            task.id, task.status, task.owner, task.owner_date, task.priority, task.run_at,
            CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
        FROM task
        WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6)
            AND task.priority = :sa_jobqueue_priority
            AND task.run_at >= (
                SELECT min(sa_jobqueue_waiting.run_at) AS min_1 FROM task AS sa_jobqueue_waiting
                WHERE sa_jobqueue_waiting.status = 'unclaimed'
                    AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority
            )
        ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
        FOR UPDATE SKIP LOCKED
        """,
    )


def test_sqlite_claims_the_due_rows_of_the_next_priority() -> None:
    assert claim_sql(Task, "sqlite")[1:] == lines(
        """
        UPDATE task
        SET status='claimed', owner=:sa_jobqueue_owner,
            owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
        WHERE task.id IN (
            SELECT task.id FROM task
            WHERE task.status = 'unclaimed'
                AND task.run_at <= (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
                AND task.priority = :sa_jobqueue_priority
            ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit OFFSET :param_1
        )
        RETURNING id, status, owner, owner_date, priority, run_at
        """
    )


# Composite keys


def test_composite_keys_are_picked_once_in_a_materialized_query() -> None:
    assert claim_sql(Seat, "postgresql") == lines(
        """
        WITH sa_jobqueue_picked AS MATERIALIZED (
            SELECT seat.hall AS hall, seat.number AS number FROM seat
            WHERE seat.status IN ('unclaimed', 'unclaimed')
            ORDER BY seat.status, seat.hall, seat.number LIMIT :sa_jobqueue_limit
            FOR NO KEY UPDATE OF seat SKIP LOCKED
        ), sa_jobqueue_claimed AS (
            UPDATE seat
            SET status='claimed', owner=:sa_jobqueue_owner,
                owner_date=(SELECT clock_timestamp())
            FROM sa_jobqueue_picked WHERE seat.hall = sa_jobqueue_picked.hall AND seat.number =
                sa_jobqueue_picked.number AND
                CASE WHEN (seat.status = 'unclaimed') THEN 1 ELSE 0 END = 1
            RETURNING seat.hall, seat.number, seat.status, seat.owner, seat.owner_date
        )
        SELECT sa_jobqueue_claimed.hall, sa_jobqueue_claimed.number, sa_jobqueue_claimed.status,
            sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
        FROM sa_jobqueue_claimed ORDER BY sa_jobqueue_claimed.hall, sa_jobqueue_claimed.number
        """
    )


@pytest.mark.parametrize("alias", ["mysql", "mariadb"])
def test_composite_keys_are_marked_by_tuples(alias: str) -> None:
    assert claim_sql(Seat, alias)[-1] == one_line(
        """
        UPDATE seat FORCE INDEX (PRIMARY)
        SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
        WHERE (seat.hall, seat.number) IN (:sa_jobqueue_keys) AND
                CASE WHEN (seat.status = 'unclaimed') THEN 1 ELSE 0 END = 1
        """
    )
