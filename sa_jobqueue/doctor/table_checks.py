"""Checks of the queue's table: whether it has what the model says."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Column, inspect, select

from ..dialects import dialect_of
from ..dialects.examination import Finding
from ..errors import UnsupportedDatabase
from ..model.columns import DIGITS, has_no_zone
from ..model.status import JobStatus
from .missing_columns import missing_columns
from .subject import Subject

#: So many of the newest rows show which words the application writes.
NEWEST = 1_000


def check_table(subject: Subject) -> Iterator[Finding]:
    """Check that the table exists, and has the columns of the model."""
    table, connection = subject.mapping.table, subject.connection
    if not inspect(connection).has_table(table.name, schema=connection.schema_for_object(table)):
        yield Finding.error(
            f"there is no table {table.fullname}",
            "run the migrations, or create_all(); or examine another database",
        )
    elif missing := missing_columns(
        lambda statement: subject.connection.execute(statement), table, subject.session.rollback
    ):
        yield Finding.error(
            f"the table {table.fullname} lacks columns of the model: {', '.join(missing)}",
            "run the migrations: alembic upgrade head; or examine another database",
        )


def check_strategy(subject: Subject) -> Iterator[Finding]:
    """Name the strategy; the database may be unable to run it."""
    try:
        yield Finding(f"claims are made by {subject.strategy.name}")
    except UnsupportedDatabase as error:
        yield Finding.error(
            str(error),
            "make the queue with strategy='auto', which needs a class with JobMixin; or examine it "
            "in a database that can run this strategy",
        )


def check_columns(subject: Subject) -> Iterator[Finding]:
    """Check that the table's times have a zone, and owner_date microseconds, as the model says."""
    mapping, postgresql = subject.mapping, dialect_of("postgresql")
    names = [*mapping.time_keys, *filter(None, [mapping.args.enqueued_at])]
    for column in (mapping.mapper.columns[name] for name in names):
        if has_no_zone(column.type, postgresql) or not isinstance(column, Column):
            continue  # stats() reads an enqueued_at as its type says
        if subject.examination.lacks_zone(subject.connection, column):
            yield Finding.error(
                f"{column.name} has no time zone in the database, where the model has one: it is "
                "compared in the zone of each session",
                f"op.alter_column({column.table.name!r}, {column.name!r}, type_=timestamp_type(), "
                f"postgresql_using=\"{column.name} AT TIME ZONE 'UTC'\"), if its times are UTC; "
                "without the USING every time would be shifted",
            )
    if not mapping.is_queue or not subject.strategy.marks:
        return
    column = mapping.column("owner_date")
    digits = subject.examination.time_digits(subject.connection, column)
    if digits is not None and digits < DIGITS:
        yield Finding.error(
            f"{column.name} keeps {digits} digits of a second in the database, so finishes are "
            "lost",
            f"op.alter_column({column.table.name!r}, {column.name!r}, type_=timestamp_type()), "
            "with timestamp_type of sa_jobqueue.migration",
        )


def check_statuses(subject: Subject) -> Iterator[Finding]:
    """Look whether the newest rows have statuses of the queue: no claim takes other words."""
    mapping, spec = subject.mapping, subject.spec
    if not mapping.is_queue or spec.ready != mapping.word(JobStatus.UNCLAIMED):
        return  # a queue of a further status, such as a step's, gets its rows from others
    ours = {*map(mapping.word, JobStatus), *mapping.ready, *mapping.during}
    ours |= {spec.during, subject.queue.then}
    newest = (
        select(mapping.status_word.label("word"))
        .order_by(*(key.desc() for key in mapping.key_attributes))
        .limit(NEWEST)
        .subquery()
    )
    found = set(subject.connection.execute(select(newest.c.word).distinct()).scalars())
    if found and not found & ours:
        shown = ", ".join(sorted(map(repr, found))[:5])
        yield Finding.warning(
            f"the newest rows have statuses of their own ({shown}): no claim takes them, since it "
            f"looks for {spec.ready!r}",
            "name the table's words in the model, as in __queue_args__ = {'names': {'unclaimed': "
            f"{sorted(found)[0]!r}}}}}, or update the rows to {spec.ready!r}",
        )
