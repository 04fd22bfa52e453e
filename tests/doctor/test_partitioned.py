"""A partitioned table has the rows and the indexes of its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import URL, Engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, PriorityMixin
from sa_jobqueue.doctor import Report, examine
from tests.support import SERVERS, make_engine

from .models import run

PARTITIONS = 4

pytestmark = [
    pytest.mark.only_on(*SERVERS),
    pytest.mark.xdist_group("plans"),
]


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, PriorityMixin, Base):
    """A queue in four partitions."""

    __tablename__ = "doctor_parcel"
    __table_args__ = {  # noqa: RUF012 - as users write it
        "postgresql_partition_by": "HASH (id)",
        "mysql_partition_by": "HASH (id)",
        "mysql_partitions": str(PARTITIONS),
        "mariadb_partition_by": "HASH (id)",
        "mariadb_partitions": str(PARTITIONS),
    }
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    """An engine with the table and its partitions."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    if engine.dialect.name == "postgresql":
        for number in range(PARTITIONS):
            run(
                engine,
                f"CREATE TABLE doctor_parcel_{number} PARTITION OF doctor_parcel "
                f"FOR VALUES WITH (modulus {PARTITIONS}, remainder {number})",
            )
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def add_parcels(engine: Engine, number: int) -> None:
    with engine.begin() as connection:
        connection.execute(insert(Parcel), [{"priority": n % 5} for n in range(number)])
    words = "ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE TABLE"
    run(engine, f"{words} doctor_parcel")


def examined(engine: Engine) -> Report:
    return examine(engine, Parcel, limit=50, old_snapshot=timedelta(days=1))


@pytest.mark.parametrize("number", [0, 5_000])
def test_a_partitioned_queue_that_is_well_has_no_finding(engine: Engine, number: int) -> None:
    if number:
        add_parcels(engine, number)

    report = examined(engine)

    assert [str(finding) for finding in report.findings if finding.check != "version"] == []
    assert report.cost is not None
    assert report.cost.claimed == min(number, 50)


@pytest.mark.parametrize("number", [0, 5_000])
def test_a_sort_over_the_partitions_is_found(engine: Engine, number: int) -> None:
    on_table = "" if engine.dialect.name == "postgresql" else " ON doctor_parcel"
    run(engine, f"DROP INDEX ix_doctor_parcel_claim{on_table}")
    run(engine, "CREATE INDEX ix_doctor_parcel_claim ON doctor_parcel (status, id)")
    if number:
        add_parcels(engine, number)

    report = examined(engine)

    assert {"index", "plan"} <= {finding.check for finding in report.errors}


@pytest.mark.only_on("postgresql")
def test_statistics_that_are_missing_are_named_where_much_is_read(engine: Engine) -> None:
    for number in range(PARTITIONS):
        run(engine, f"ALTER TABLE doctor_parcel_{number} SET (autovacuum_enabled = false)")
    with engine.begin() as connection:
        connection.execute(insert(Parcel), [{"priority": n % 5} for n in range(5_000)])

    (finding,) = (finding for finding in examined(engine).findings if finding.check != "version")

    assert finding.check == "cost"
    assert finding.fix.startswith("ANALYZE the table (doctor_parcel)")
