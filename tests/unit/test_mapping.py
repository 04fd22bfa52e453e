"""A class of any style becomes a queue: its columns, indexes and names; no server is asked."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from sqlalchemy import BigInteger, ForeignKey, Index, Integer, MetaData, String, UniqueConstraint
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.declarative import AbstractConcreteBase
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateTable

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
    claim_statements,
)
from tests.contract.model import styles
from tests.models import Animal, Cat, Document, Dog
from tests.unit.mapping import DIALECTS, assert_queue, columns, indexes, map_job

#: As SQLAlchemy's own pages write columns that several classes share.
StateText = Annotated[str, mapped_column(String(64), index=True)]


def number() -> Any:
    return mapped_column(Integer)


@pytest.mark.parametrize(
    ("entity", "claim"),
    [
        (Animal, "status, id"),
        (Document, "status, created, id"),
        (styles.DataclassJob, "status, priority, id"),
        (styles.SQLModelJob, "status, priority, id"),
        (styles.Imperative, "status, id"),
        (styles.Hybrid, "status, id"),
    ],
)
def test_a_class_of_every_style_has_the_columns_and_indexes_of_a_queue(
    entity: Any, claim: str
) -> None:
    assert_queue(JobQueue(entity).mapping.table, claim)


@pytest.mark.parametrize(
    ("mixins", "body", "claim"),
    [
        ((JobMixin,), {}, "status, id"),
        ((RetryMixin, JobMixin, PriorityMixin), {}, "status, priority, run_at, id"),
        (
            (JobMixin, ScheduleMixin.named(run_at="due"), RetryMixin.named(run_at="due")),
            {},
            "status, due, id",
        ),
        (
            (JobMixin, ScheduleMixin),
            {name: mapped_column(Integer, primary_key=True) for name in ("hall", "number")},
            "status, run_at, hall, number",
        ),
        (
            (JobMixin, RoundMixin, PriorityMixin, ScheduleMixin),
            {},
            "status, round, priority, run_at, id",
        ),
        (
            (JobMixin, PriorityMixin),
            {
                "weight": number(),
                "age": number(),
                "__queue_args__": {"equality": ["weight", "age"]},
            },
            "weight, age, status, priority, id",
        ),
        (
            (JobMixin, PriorityMixin),
            {
                "weight": number(),
                "age": number(),
                "__queue_args__": {"order_by": ["weight desc", "age"]},
            },
            "status, weight DESC, age, id",
        ),
        ((JobMixin,), {"__queue_args__": {"order_by": "id desc"}}, "status, id DESC"),
    ],
)
def test_the_claim_index_is_in_the_order_of_claims(
    mixins: tuple[Any, ...], body: dict[str, Any], claim: str
) -> None:
    assert_queue(map_job(*mixins, **body).__table__, claim)


def index_names(table: Any) -> list[str]:
    """List the names as the DDL writes them."""
    return [text.split()[2] for text in indexes(table)]


@pytest.mark.parametrize(
    ("mixins", "body", "written"),
    [
        (
            (RetryMixin, ScheduleMixin, PriorityMixin, JobMixin),
            {},
            [
                "priority SMALLINT DEFAULT '0' NOT NULL",
                "run_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL",
                "attempts INTEGER DEFAULT '0' NOT NULL",
                "max_attempts INTEGER DEFAULT '20'",
                "last_error TEXT",
            ],
        ),
        (
            (JobMixin, RetryMixin),
            {"__queue_args__": {"max_attempts": 5}},
            ["max_attempts INTEGER DEFAULT '5'"],
        ),
        (
            (JobMixin, RetryMixin),
            {"__queue_args__": {"max_attempts": None}},
            ["max_attempts INTEGER"],
        ),
        (
            (JobMixin,),
            {"__queue_args__": {"ready": ["waiting_for_the_notary"]}},
            ["status VARCHAR(22) DEFAULT 'unclaimed' NOT NULL"],
        ),
        ((JobMixin, RoundMixin), {}, ["round INTEGER DEFAULT '0' NOT NULL"]),
        (
            (JobMixin.named(status="job_status").named(owner="job_owner"),),
            {"status": mapped_column(String(9)), "owner": number()},
            [
                "job_status VARCHAR(16) DEFAULT 'unclaimed' NOT NULL",
                "job_owner VARCHAR(64)",
                "owner_date TIMESTAMP WITH TIME ZONE",
                "status VARCHAR(9)",
                "owner INTEGER",
            ],
        ),
        (
            (JobMixin.named(status="state"), PriorityMixin.named(priority="heat")),
            {
                "state": mapped_column(String(64), index=True),
                "heat": mapped_column(BigInteger, nullable=False, server_default="7"),
            },
            ["state VARCHAR(64)", "heat BIGINT DEFAULT '7' NOT NULL"],
        ),
        (
            (JobMixin.named(status="state"),),
            {"__annotations__": {"state": Mapped[StateText]}},
            ["state VARCHAR(64) NOT NULL"],
        ),
    ],
)
def test_columns_have_the_types_defaults_and_names_that_the_class_says(
    mixins: tuple[Any, ...], body: dict[str, Any], written: list[str]
) -> None:
    table = map_job(*mixins, **body).__table__

    assert columns(table, *(text.split()[0] for text in written)) == written
    assert len(table.c) == len({column.key for column in table.c})


@pytest.mark.parametrize(
    ("mixin", "body", "claim", "reap"),
    [
        (
            JobMixin.named(status="job_status"),
            {"status": number()},
            "(job_status, id) WHERE job_status = 'unclaimed'",
            "(job_status, owner_date) WHERE job_status = 'claimed'",
        ),
        (
            JobMixin,
            {"__queue_args__": {"names": {"unclaimed": "unsent", "claimed": "sending"}}},
            "(status, id) WHERE status = 'unsent'",
            "(status, owner_date) WHERE status = 'sending'",
        ),
        (
            JobMixin,
            {"__queue_args__": {"ready": ["rendered", "cut"]}},
            "(status, id) WHERE status IN ('unclaimed', 'rendered', 'cut')",
            "(status, owner_date) WHERE status = 'claimed'",
        ),
    ],
)
def test_indexes_name_the_statuses_of_the_class(
    mixin: Any, body: dict[str, Any], claim: str, reap: str
) -> None:
    table = map_job(mixin, **body).__table__

    assert indexes(table) == [
        f"CREATE INDEX ix_job_claim ON job {claim}",
        f"CREATE INDEX ix_job_reap ON job {reap}",
    ]
    if " IN " in claim:  # SQLite would use it only for the very same IN, which no claim has
        assert indexes(table, "sqlite")[0] == "CREATE INDEX ix_job_claim ON job (status, id)"


def test_times_have_microseconds_on_every_database() -> None:
    table = map_job(JobMixin, ScheduleMixin).__table__

    assert columns(table, "run_at", "owner_date", dialect="mysql") == [
        "run_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))",
        "owner_date DATETIME(6)",
    ]
    assert columns(table, "owner_date", dialect="sqlite") == ["owner_date DATETIME"]
    old = mysql.dialect()
    old.server_version_info = (5, 7, 44)
    written = str(CreateTable(table).compile(dialect=old))
    # SQLAlchemy 2.1 learns only from a connection whether the default stands in parentheses.
    assert re.search(
        r"run_at DATETIME\(6\) NOT NULL DEFAULT \(?'1970-01-01 00:00:00.000000'", written
    )


def test_defaults_of_the_orm_are_filled_in_where_the_users_column_has_none() -> None:
    job = map_job(
        JobMixin.named(status="state"),
        RetryMixin,
        state=mapped_column(String(64)),
        max_attempts=mapped_column("most", Integer),
    )
    own = map_job(JobMixin, RetryMixin, max_attempts=mapped_column("most", Integer, default=5))

    defaults: list[Any] = [job.__table__.c.state, job.__table__.c.most, own.__table__.c.most]
    assert [column.default.arg for column in defaults] == ["unclaimed", 20, 5]


# Names


@pytest.mark.parametrize(
    ("convention", "names"),
    [
        ("idx_%(table_name)s_%(constraint_name)s", ["idx_job_claim", "idx_job_reap"]),
        ("ix_%(column_0_label)s", ["ix_job_claim", "ix_job_reap"]),
        ("ix_%(table_name)s_%(column_0_N_name)s", ["ix_job_claim", "ix_job_reap"]),
    ],
)
def test_a_naming_convention_with_a_constraint_name_names_the_indexes(
    convention: str, names: list[str]
) -> None:
    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention={"ix": convention, "pk": "pk_%(table_name)s"})

    assert index_names(map_job(JobMixin, base=Base).__table__) == names


def test_long_table_names_get_short_and_unique_index_names() -> None:
    long = ("a" * 62 + "b", "a" * 62 + "c", "ü" * 31)
    tables = [map_job(JobMixin, __tablename__=name).__table__ for name in long]

    names = [str(index.name) for table in tables for index in table.indexes]

    assert len(set(names)) == 6
    assert max(len(name.encode()) for name in names) <= 63
    assert all(name.startswith("ix_") for name in names)


def test_table_args_of_the_user_are_kept_and_a_schema_is_no_part_of_an_index_name() -> None:
    table = map_job(
        JobMixin,
        weight=number(),
        __table_args__=(
            UniqueConstraint("weight", name="uq_weight"),
            Index("ix_weight", "weight"),
            {"comment": "parcels", "schema": "office"},
        ),
    ).__table__

    assert index_names(table) == ["ix_job_claim", "ix_job_reap", "ix_weight"]
    assert "uq_weight" in {constraint.name for constraint in table.constraints}
    assert table.comment == "parcels"
    where = "WHERE status = 'unclaimed'"
    assert indexes(table)[0] == f"CREATE INDEX ix_job_claim ON office.job (status, id) {where}"
    assert indexes(table, "sqlite")[0] == (
        f"CREATE INDEX office.ix_job_claim ON job (status, id) {where}"
    )


# Rounds


def test_round_mixin_alone_has_only_an_index_of_round_and_key() -> None:
    table = map_job(RoundMixin.named(round="edition")).__table__

    assert set(table.c.keys()) == {"id", "edition"}
    for dialect in DIALECTS:
        assert indexes(table, dialect) == ["CREATE INDEX ix_job_claim ON job (edition, id)"]


def test_the_table_of_the_rounds_goes_where_the_queue_is() -> None:
    base = type("Depot", (DeclarativeBase,), {"metadata": MetaData(schema="depot")})
    job = map_job(JobMixin, RoundMixin, base=base, __tablename__="box" * 20)

    (rounds,) = set(job.metadata.tables.values()) - {job.__table__}

    assert (rounds.schema, len(rounds.name), rounds.name[-7:]) == ("depot", 63, "_rounds")
    assert columns(rounds, "round", "criteria", "begun_at", "started_at", dialect="mysql") == [
        "round INTEGER NOT NULL",
        "criteria VARCHAR(64) NOT NULL",
        "begun_at DATETIME(6) NOT NULL",
        "started_at DATETIME(6)",
    ]


# Hierarchies


def test_a_joined_hierarchy_has_the_columns_in_its_root_only() -> None:
    table: Any = Dog.__table__

    assert (list(table.c.keys()), indexes(table)) == (["id", "trick"], [])
    assert {JobQueue(each).mapping.table for each in (Cat, Dog)} == {Animal.__table__}


@pytest.mark.parametrize("joined", [True, False])
def test_a_mixin_on_a_subclass_stands_in_its_table_or_in_the_one_that_it_shares(
    joined: bool,
) -> None:
    class Base(DeclarativeBase):
        pass

    class Document(Base):
        __tablename__ = "document"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "d"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    body: dict[str, Any] = {"__mapper_args__": {"polymorphic_identity": "scan"}}
    if joined:
        key = mapped_column(ForeignKey("document.id"), primary_key=True)
        body |= {"__tablename__": "scan", "id": key}
    scan = type("Scan", (JobMixin, Document), body)

    assert_queue(JobQueue(scan).mapping.table)
    root: Any = Document.__table__
    assert len(root.indexes) == (0 if joined else 2)


def test_the_subclasses_of_an_abstract_concrete_base_are_queues() -> None:
    class ConcreteBase(DeclarativeBase):
        pass

    class Staff(JobMixin, AbstractConcreteBase, ConcreteBase):
        strict_attrs = True
        name: Mapped[str] = mapped_column(String(20))

    class Manager(Staff):
        __tablename__ = "manager"
        __mapper_args__ = {"polymorphic_identity": "manager", "concrete": True}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)

    ConcreteBase.registry.configure()

    assert_queue(JobQueue(Manager).mapping.table)
    with pytest.raises(ArgumentError, match="Staff is mapped to a query: claim the class of a t"):
        claim_statements(Staff, dialect="sqlite")
