"""Checks of the server and of the connection: what makes claims slow, or owners unknown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

from sqlalchemy import Column, inspect, select

from ..ages import age_text
from ..dialects import dialect_of
from ..dialects.clock import utc_now
from ..dialects.examination import Answer
from ..errors import UnsupportedDatabase
from ..model.microseconds import DIGITS, has_no_zone
from .case import Case
from .missing_columns import missing_columns

#: A warning comes so long before the end of a server's updates.
NOTICE = timedelta(days=90)


def check_table(case: Case) -> Iterator[Answer]:
    """Check that the table exists, and has the columns of the model."""
    table, connection = case.mapping.table, case.connection
    schema = connection.schema_for_object(table)
    if not inspect(connection).has_table(table.name, schema=schema):
        yield Answer.error(
            f"there is no table {table.fullname}",
            "run the migrations, or create_all(); or examine another database",
        )
    elif missing := missing_columns(
        lambda statement: case.connection.execute(statement), table, case.session.rollback
    ):
        yield Answer.error(
            f"the table {table.fullname} lacks columns of the model: {', '.join(missing)}",
            "run the migrations: alembic upgrade head; or examine another database",
        )


def check_columns(case: Case) -> Iterator[Answer]:
    """Check that the table's times have a zone, and owner_date microseconds, as the model says."""
    yield from _lacking_zones(case)
    if not case.mapping.is_queue or not case.strategy.marks:
        return
    column = case.mapping.column("owner_date")
    digits = case.examination.time_digits(case.connection, column)
    if digits is None:
        return
    if digits >= DIGITS:
        yield Answer(f"{column.name} keeps {digits} digits of a second")
        return
    yield Answer.error(
        f"{column.name} keeps {digits} digits of a second in the database, so finishes are lost",
        f"op.alter_column({column.table.name!r}, {column.name!r}, type_=timestamp_type()), with "
        "timestamp_type of sa_jobqueue.migration",
    )


def _lacking_zones(case: Case) -> Iterator[Answer]:
    mapping, postgresql = case.mapping, dialect_of("postgresql")
    enqueued_at = mapping.args.enqueued_at
    names = [*mapping.time_keys, *([] if enqueued_at is None else [enqueued_at])]
    for column in (mapping.mapper.columns[name] for name in names):
        if has_no_zone(column.type, postgresql) or not isinstance(column, Column):
            continue  # stats() reads an enqueued_at as its type says
        if case.examination.lacks_zone(case.connection, column):
            yield Answer.error(
                f"{column.name} has no time zone in the database, where the model has one: it is "
                "compared in the zone of each session",
                f"op.alter_column({column.table.name!r}, {column.name!r}, type_=timestamp_type(), "
                f"postgresql_using=\"{column.name} AT TIME ZONE 'UTC'\"), if its times are UTC; "
                "without the USING every time would be shifted",
            )


def check_strategy(case: Case) -> Iterator[Answer]:
    """Name the strategy; the database may be unable to run it."""
    try:
        name = case.strategy.name
    except UnsupportedDatabase as error:
        yield Answer.error(
            str(error),
            "make the queue with strategy='auto', which needs a class with JobMixin; or examine it "
            "in a database that can run this strategy",
        )
    else:
        yield Answer(f"claims are made by {name}")


def check_version(case: Case) -> Iterator[Answer]:
    """Name the server's version, and tell whether it still gets updates."""
    version, examination = case.database.version, case.examination
    today = case.connection.execute(select(utc_now())).scalar_one().date()
    if version is None:
        return
    if any(version[: len(short)] == short for short in examination.short_lived):
        yield Answer.warning(
            f"{case.database} is a release between two long-term releases, and gets no updates",
            "upgrade to a long-term release",
        )
        return
    ends = [end for series, end in examination.support_ends.items() if _is_of(version, series)]
    yield _support_answer(case, ends[0], today) if ends else Answer(f"{case.database}")


def _is_of(version: tuple[int, ...], series: tuple[int, ...]) -> bool:
    return version[: len(series)] == series


def _support_answer(case: Case, end: date, today: date) -> Answer:
    if end < today:
        return Answer.warning(
            f"{case.database} has had no updates since {end}", "upgrade the server"
        )
    if end - today < NOTICE:
        return Answer.warning(
            f"{case.database} gets updates only until {end}", "upgrade the server"
        )
    return Answer(f"{case.database} gets updates until {end}")


def check_isolation(case: Case) -> Iterator[Answer]:
    """Judge the isolation level that the caller's transactions begin with."""
    connection = case.connection
    if case.database.in_autocommit(connection):
        yield Answer("the connection is in AUTOCOMMIT")
    else:
        level = connection.get_isolation_level()
        yield case.examination.isolation(level, case.strategy.name)
        refusal = case.examination.changed_rows(connection) if level == "REPEATABLE READ" else None
        if refusal is not None:
            yield refusal


def check_owners(case: Case) -> Iterator[Answer]:
    """Check whether this user can see which owners are alive."""
    answer = case.examination.processes(case.connection)
    if answer is not None:
        yield answer


def check_pooler(case: Case) -> Iterator[Answer]:
    """Check whether a pooler shares our server session with others."""
    if not case.database.through_pooler(case.connection):
        return
    poolers = case.examination.poolers
    message = f"a pooler such as {poolers} is between us and the server"
    fix = (
        "give Owner(), named_lock() and advisory_session() an engine with a direct URL; claims of "
        "other strategies may go through the pooler"
    )
    prepares = case.examination.driver_behind_pooler(case.connection)
    if prepares is not None:
        fix = f"{fix}; {prepares}"
    if case.strategy.name == "advisory":
        yield Answer.error(f"{message}: advisory claims are refused through it", fix)
    else:
        yield Answer.warning(
            f"{message}: its clients share server sessions, and so the lock of an Owner. Owners "
            "are refused through the pooler, and nobody can see whether other owners are alive",
            fix,
        )


def check_snapshot(case: Case) -> Iterator[Answer]:
    """Tell the age of the oldest snapshot of other transactions."""
    age = case.examination.oldest_snapshot(case.connection, case.mapping.table)
    if age is None:
        return
    if isinstance(age, Answer):
        yield age
    elif age >= case.old_snapshot:
        yield Answer.warning(
            f"the oldest snapshot is {age_text(age)} old: since then no row version of a claimed "
            "or finished job was removed, and claims read them all",
            case.examination.ending_snapshots,
        )
    else:
        yield Answer(f"the oldest snapshot is {age_text(age)} old")


def check_garbage(case: Case) -> Iterator[Answer]:
    """Tell how many old row versions wait to be removed."""
    garbage = case.examination.garbage(case.connection, case.mapping.table)
    if garbage is not None:
        yield garbage
