"""Every style of mapping gets the queue's columns and indexes; no server is asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    Uuid,
    make_url,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    mapped_column,
    registry,
)
from sqlalchemy.schema import CreateColumn, CreateIndex
from sqlmodel import Field, SQLModel

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.model.round_table import round_table

DIALECTS = {
    alias: make_url(f"{driver}://").get_dialect()()
    for alias, driver in {
        "postgresql": "postgresql+psycopg2",
        "mysql": "mysql+pymysql",
        "sqlite": "sqlite",
    }.items()
}

JOB_COLUMNS = [
    "status VARCHAR(16) DEFAULT 'unclaimed' NOT NULL",
    "owner VARCHAR(64)",
    "owner_date TIMESTAMP WITH TIME ZONE",
]


def table_of(entity: Any) -> Table:
    table = entity.__table__
    assert isinstance(table, Table)
    return table


def columns(table: Table, *names: str, dialect: str = "postgresql") -> list[str]:
    """Write some of a table's columns as CREATE TABLE does."""
    wanted = [table.c[name] for name in names]
    return [str(CreateColumn(column).compile(dialect=DIALECTS[dialect])) for column in wanted]


def indexes(table: Table, dialect: str = "postgresql") -> list[str]:
    """Write a table's indexes as CREATE INDEX does, in the order of their names."""
    made = [str(CreateIndex(index).compile(dialect=DIALECTS[dialect])) for index in table.indexes]
    return sorted(made)


def claim_index(entity: Any, dialect: str = "postgresql") -> str:
    (made,) = (text for text in indexes(table_of(entity), dialect) if "_claim ON" in text)
    return made


def assert_queue(entity: Any, claim: str = "status, id") -> None:
    """Assert that a class has a queue's columns and both indexes, under their own names."""
    table = table_of(entity)
    name = table.name
    partial = [
        f"CREATE INDEX ix_{name}_claim ON {name} ({claim}) WHERE status = 'unclaimed'",
        f"CREATE INDEX ix_{name}_reap ON {name} (status, owner_date) WHERE status = 'claimed'",
    ]
    assert columns(table, "status", "owner", "owner_date") == JOB_COLUMNS
    assert indexes(table, "postgresql") == partial
    assert indexes(table, "sqlite") == partial
    assert indexes(table, "mysql") == [text.partition(" WHERE")[0] for text in partial]


class Base(DeclarativeBase):
    pass


# The bases and the body of the class


def test_a_plain_class_becomes_a_queue() -> None:
    class Email(JobMixin, Base):
        __tablename__ = "email"
        id: Mapped[int] = mapped_column(primary_key=True)
        recipient: Mapped[str]

    assert_queue(Email)
    assert list(table_of(Email).c.keys()) == ["id", "recipient", "status", "owner", "owner_date"]


def test_times_have_microseconds_on_every_engine() -> None:
    class Appointment(JobMixin, ScheduleMixin, Base):
        __tablename__ = "appointment"
        id: Mapped[int] = mapped_column(primary_key=True)

    table = table_of(Appointment)

    assert columns(table, "run_at", "owner_date", dialect="mysql") == [
        "run_at DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00.000000'",
        "owner_date DATETIME(6)",
    ]
    assert columns(table, "owner_date", dialect="sqlite") == ["owner_date DATETIME"]


def test_the_users_own_table_args_tuple_is_kept() -> None:
    class Parcel(JobMixin, Base):
        __tablename__ = "parcel"
        __table_args__ = (
            UniqueConstraint("number", name="uq_number"),
            Index("ix_weight", "weight"),
            {"comment": "parcels"},
        )
        id: Mapped[int] = mapped_column(primary_key=True)
        number: Mapped[str]
        weight: Mapped[int]

    table = table_of(Parcel)

    assert {index.name for index in table.indexes} == {
        "ix_weight",
        "ix_parcel_claim",
        "ix_parcel_reap",
    }
    assert "uq_number" in {constraint.name for constraint in table.constraints}
    assert table.comment == "parcels"


def test_the_users_own_table_args_dict_is_kept() -> None:
    class Postcard(JobMixin, Base):
        __tablename__ = "postcard"
        __table_args__ = {"comment": "postcards"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Postcard)
    assert table_of(Postcard).comment == "postcards"


def test_several_mixins_order_the_index_by_priority_time_and_key() -> None:
    class Task(RetryMixin, ScheduleMixin, PriorityMixin, JobMixin, Base):
        __tablename__ = "task"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Task, claim="status, priority, run_at, id")
    optional = ("priority", "run_at", "attempts", "max_attempts", "last_error")
    assert columns(table_of(Task), *optional) == [
        "priority SMALLINT DEFAULT '0' NOT NULL",
        "run_at TIMESTAMP WITH TIME ZONE DEFAULT '1970-01-01 00:00:00.000000' NOT NULL",
        "attempts INTEGER DEFAULT '0' NOT NULL",
        "max_attempts INTEGER",
        "last_error TEXT",
    ]


def test_retries_without_a_schedule_come_behind_the_others() -> None:
    class Upload(JobMixin, RetryMixin, PriorityMixin, Base):
        __tablename__ = "upload"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Upload, claim="status, priority, attempts, id")


def test_the_base_may_stand_before_the_mixins() -> None:
    class Invoice(Base, JobMixin, PriorityMixin):
        __tablename__ = "invoice"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Invoice, claim="status, priority, id")


def test_a_mixin_on_the_base_makes_every_class_a_queue() -> None:
    class QueueBase(JobMixin, DeclarativeBase):
        pass

    class Apple(QueueBase):
        __tablename__ = "apple"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Pear(PriorityMixin, QueueBase):
        __tablename__ = "pear"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Apple)
    assert_queue(Pear, claim="status, priority, id")


def test_an_abstract_base_hands_the_mixins_on() -> None:
    class AbstractJob(JobMixin, ScheduleMixin, Base):
        __abstract__ = True
        id: Mapped[int] = mapped_column(primary_key=True)

    class Report(AbstractJob):
        __tablename__ = "report"

    class Digest(AbstractJob):
        __tablename__ = "digest"

    assert_queue(Report, claim="status, run_at, id")
    assert_queue(Digest, claim="status, run_at, id")


# Inheritance


def test_a_single_table_hierarchy_has_the_columns_and_indexes_once() -> None:
    class Animal(JobMixin, Base):
        __tablename__ = "animal"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "a"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Cat(Animal):
        __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012 - as users write it
        lives: Mapped[int | None]

    assert_queue(Animal)
    assert mapping_of(Cat).table is Animal.__table__


def test_a_joined_hierarchy_has_the_columns_in_its_root_only() -> None:
    class Vehicle(JobMixin, PriorityMixin, Base):
        __tablename__ = "vehicle"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "v"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Car(Vehicle):
        __tablename__ = "car"
        __mapper_args__ = {"polymorphic_identity": "car"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(ForeignKey("vehicle.id"), primary_key=True)
        doors: Mapped[int]

    assert_queue(Vehicle, claim="status, priority, id")
    assert list(table_of(Car).c.keys()) == ["id", "doors"]
    assert indexes(table_of(Car)) == []
    assert mapping_of(Car).table is Vehicle.__table__


def test_a_mixin_on_a_joined_subclass_stands_in_its_table() -> None:
    class Document(Base):
        __tablename__ = "document"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "d"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Scan(JobMixin, Document):
        __tablename__ = "scan"
        __mapper_args__ = {"polymorphic_identity": "scan"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(ForeignKey("document.id"), primary_key=True)

    assert_queue(Scan)
    assert list(table_of(Document).c.keys()) == ["id", "kind"]
    assert indexes(table_of(Document)) == []


def test_a_mixin_on_a_single_table_subclass_stands_in_the_roots_table() -> None:
    class Shape(Base):
        __tablename__ = "shape"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "s"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Circle(JobMixin, Shape):
        __mapper_args__ = {"polymorphic_identity": "circle"}  # noqa: RUF012 - as users write it

    assert_queue(Shape)
    assert mapping_of(Circle).table is Shape.__table__


# Other ways to map


def test_a_dataclass_becomes_a_queue_and_its_constructor_does_not_know_the_columns() -> None:
    class DataclassBase(MappedAsDataclass, DeclarativeBase):
        pass

    class Point(JobMixin, PriorityMixin, DataclassBase):
        __tablename__ = "point"
        id: Mapped[int] = mapped_column(primary_key=True, init=False)
        x: Mapped[int]
        y: Mapped[int] = mapped_column(default=0)

    assert_queue(Point, claim="status, priority, id")
    assert repr(Point(1)).endswith("Point(id=None, x=1, y=0)")
    with pytest.raises(TypeError, match="priority"):
        Point(1, priority=5)  # type: ignore[call-arg]  # what is shown


def test_a_dataclass_style_mixed_into_one_class_becomes_a_queue() -> None:
    class Line(MappedAsDataclass, JobMixin, Base):
        __tablename__ = "line"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Line)
    assert Line(id=3).id == 3


@pytest.fixture
def sqlmodel_registry() -> Iterator[registry]:
    """Give a registry of the test's own: SQLModel has one for all classes."""
    own = registry()
    yield own
    own.dispose()


def test_a_sqlmodel_becomes_a_queue(sqlmodel_registry: registry) -> None:
    class Model(SQLModel, registry=sqlmodel_registry):
        pass

    class Hero(JobMixin, PriorityMixin, Model, table=True):
        id: int | None = Field(default=None, primary_key=True)
        name: str

    assert_queue(Hero, claim="status, priority, id")
    assert set(Hero.model_fields) == {"id", "name"}


def test_an_imperative_mapping_becomes_a_queue() -> None:
    class Letter(JobMixin):
        pass

    mapper_registry = registry()
    letters = Table("letter", mapper_registry.metadata, *job_columns())

    mapper_registry.map_imperatively(Letter, letters)

    assert_queue(Letter)


def test_a_hybrid_table_becomes_a_queue() -> None:
    class Telegram(JobMixin, Base):
        __table__ = Table("telegram", Base.metadata, *job_columns())

    assert_queue(Telegram)


def job_columns() -> list[Column[Any]]:
    """List the columns of a table that the user wrote out."""
    return [
        Column("id", Integer, primary_key=True),
        Column("status", String(16), server_default="unclaimed", nullable=False),
        Column("owner", String(64)),
        Column("owner_date", mapping_of(example()).column("owner_date").type),
    ]


def example() -> type[Any]:
    class Example(JobMixin, declarative_base()):  # type: ignore[misc]  # made by a call
        __tablename__ = "example"
        id = Column(Integer, primary_key=True)

    return Example


def test_declarative_base_without_mapped_becomes_a_queue() -> None:
    assert_queue(example())


# Names


def test_a_schema_is_part_of_the_table_and_not_of_the_index_name() -> None:
    class Memo(JobMixin, Base):
        __tablename__ = "memo"
        __table_args__ = {"schema": "office"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert claim_index(Memo) == (
        "CREATE INDEX ix_memo_claim ON office.memo (status, id) WHERE status = 'unclaimed'"
    )
    assert claim_index(Memo, "sqlite") == (
        "CREATE INDEX office.ix_memo_claim ON memo (status, id) WHERE status = 'unclaimed'"
    )


def test_a_naming_convention_with_a_constraint_name_names_the_indexes() -> None:
    class ConventionBase(DeclarativeBase):
        metadata = MetaData(naming_convention={"ix": "idx_%(table_name)s_%(constraint_name)s"})

    class Bill(JobMixin, ConventionBase):
        __tablename__ = "bill"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert index_names(Bill) == ["idx_bill_claim", "idx_bill_reap"]


@pytest.mark.parametrize(
    "convention", ["ix_%(column_0_label)s", "ix_%(table_name)s_%(column_0_N_name)s"]
)
def test_a_naming_convention_without_a_constraint_name_leaves_ours(convention: str) -> None:
    class PlainConventionBase(DeclarativeBase):
        metadata = MetaData(naming_convention={"ix": convention, "pk": "pk_%(table_name)s"})

    class Fee(JobMixin, PlainConventionBase):
        __tablename__ = "fee"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert index_names(Fee) == ["ix_fee_claim", "ix_fee_reap"]


def index_names(entity: Any) -> list[str]:
    """List the names as the DDL writes them."""
    return [text.split()[2] for text in indexes(table_of(entity))]


def test_long_table_names_get_short_and_unique_index_names() -> None:
    class Long(JobMixin, Base):
        __tablename__ = "a" * 62 + "b"
        id: Mapped[int] = mapped_column(primary_key=True)

    class AsLong(JobMixin, Base):
        __tablename__ = "a" * 62 + "c"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Umlauts(JobMixin, Base):
        __tablename__ = "ü" * 31
        id: Mapped[int] = mapped_column(primary_key=True)

    names = [str(index.name) for job in (Long, AsLong, Umlauts) for index in table_of(job).indexes]

    assert len(set(names)) == 6
    assert max(len(name.encode()) for name in names) <= 63
    assert all(name.startswith("ix_") for name in names)


# Keys


def test_keys_of_every_type_end_the_index() -> None:
    class Bigint(JobMixin, Base):
        __tablename__ = "bigint_key"
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True)

    class Unique(JobMixin, Base):
        __tablename__ = "uuid_key"
        id: Mapped[uuid.UUID] = mapped_column(Uuid(), primary_key=True, default=uuid.uuid4)

    class Text(JobMixin, Base):
        __tablename__ = "string_key"
        id: Mapped[str] = mapped_column(String(20), primary_key=True)

    for entity in (Bigint, Unique, Text):
        assert_queue(entity)


def test_a_composite_key_ends_the_index_in_its_own_order() -> None:
    class Seat(JobMixin, ScheduleMixin, Base):
        __tablename__ = "seat"
        hall: Mapped[int] = mapped_column(primary_key=True)
        number: Mapped[str] = mapped_column(String(5), primary_key=True)

    assert_queue(Seat, claim="status, run_at, hall, number")


# Rounds


def test_rounds_come_first_in_the_claim_index_and_have_a_table_beside() -> None:
    class Invitation(JobMixin, RoundMixin, PriorityMixin, ScheduleMixin, Base):
        __tablename__ = "invitation"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Invitation, claim="status, round, priority, run_at, id")
    assert columns(table_of(Invitation), "round") == ["round INTEGER DEFAULT '0' NOT NULL"]
    rounds = Base.metadata.tables["invitation_rounds"]
    assert columns(rounds, "round", "criteria", "begun_at", "started_at", dialect="mysql") == [
        "round INTEGER NOT NULL",
        "criteria VARCHAR(64) NOT NULL",
        "begun_at DATETIME(6) NOT NULL",
        "started_at DATETIME(6)",
    ]


def test_rounds_alone_have_an_index_of_round_and_key_and_nothing_more() -> None:
    class Catalogue(RoundMixin.named(round="edition"), Base):  # type: ignore[misc]  # a call
        __tablename__ = "catalogue"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert list(table_of(Catalogue).c.keys()) == ["id", "edition"]
    for dialect in DIALECTS:
        assert indexes(table_of(Catalogue), dialect) == [
            "CREATE INDEX ix_catalogue_claim ON catalogue (edition, id)"
        ]


def test_the_table_of_the_rounds_goes_where_the_queue_is() -> None:
    class Depot(JobMixin, RoundMixin, DeclarativeBase):  # the mixin on the Base itself
        __abstract__ = True
        metadata = MetaData(schema="depot")

    class Box(Depot):
        __tablename__ = "box" * 20
        id: Mapped[int] = mapped_column(primary_key=True)

    rounds = round_table(mapping_of(Box))

    assert (rounds.schema, len(rounds.name), rounds.name[-7:]) == ("depot", 63, "_rounds")
    assert round_table(mapping_of(Box)) is rounds


def test_a_hierarchy_in_one_table_has_one_table_of_rounds() -> None:
    class Ship(JobMixin, RoundMixin, Base):
        __tablename__ = "ship"
        __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Ferry(Ship):
        __mapper_args__ = {"polymorphic_identity": "ferry"}  # noqa: RUF012 - likewise

    assert round_table(mapping_of(Ferry)) is round_table(mapping_of(Ship))


def test_a_table_that_has_the_name_already_is_an_error() -> None:
    class Guest(Base):
        __tablename__ = "hotel_rounds"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ArgumentError, match="the table that remembers the rounds of Hotel"):

        class Hotel(JobMixin, RoundMixin, Base):
            __tablename__ = "hotel"
            id: Mapped[int] = mapped_column(primary_key=True)


# Names of the user's own


def test_a_column_may_be_renamed_in_the_body() -> None:
    class Sms(JobMixin, PriorityMixin, Base):
        __tablename__ = "sms"
        id: Mapped[int] = mapped_column(primary_key=True)
        status = mapped_column("sms_status", String(20))
        priority = mapped_column("urgency", SmallInteger)

    assert columns(table_of(Sms), "sms_status", "urgency") == [
        "sms_status VARCHAR(20) DEFAULT 'unclaimed' NOT NULL",
        "urgency SMALLINT DEFAULT '0' NOT NULL",
    ]
    assert claim_index(Sms) == (
        "CREATE INDEX ix_sms_claim ON sms (sms_status, urgency, id) WHERE sms_status = 'unclaimed'"
    )


def test_named_gives_attributes_and_columns_other_names() -> None:
    class Order(
        JobMixin.named(status="job_status", owner="job_owner"),  # type: ignore[misc]  # a call
        PriorityMixin.named(priority="job_priority"),  # type: ignore[misc]  # a call
        Base,
    ):
        __tablename__ = "customer_order"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(String(9))
        owner: Mapped[int]
        priority: Mapped[str]

    table = table_of(Order)

    assert columns(table, "job_status", "job_owner", "owner_date", "job_priority") == [
        "job_status VARCHAR(16) DEFAULT 'unclaimed' NOT NULL",
        "job_owner VARCHAR(64)",
        "owner_date TIMESTAMP WITH TIME ZONE",
        "job_priority SMALLINT DEFAULT '0' NOT NULL",
    ]
    assert columns(table, "status", "owner") == [
        "status VARCHAR(9) NOT NULL",
        "owner INTEGER NOT NULL",
    ]
    assert indexes(table) == [
        "CREATE INDEX ix_customer_order_claim ON customer_order (job_status, job_priority, id) "
        "WHERE job_status = 'unclaimed'",
        "CREATE INDEX ix_customer_order_reap ON customer_order (job_status, owner_date) "
        "WHERE job_status = 'claimed'",
    ]


# __queue_args__


def test_equality_columns_lead_the_index() -> None:
    class Push(JobMixin, PriorityMixin, Base):
        __tablename__ = "push"
        __queue_args__ = {"equality": ["channel", "device"]}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        device: Mapped[str]
        channel: Mapped[str]

    assert_queue(Push, claim="channel, device, status, priority, id")


def test_order_by_replaces_the_order_and_the_key_still_ends_it() -> None:
    class Page(JobMixin, PriorityMixin, Base):
        __tablename__ = "page"
        __queue_args__ = {"order_by": ["weight desc", "created"]}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)
        created: Mapped[int]
        weight: Mapped[int]

    assert_queue(Page, claim="status, weight DESC, created, id")


def test_an_order_by_the_key_names_it_once() -> None:
    class Stack(JobMixin, Base):
        __tablename__ = "stack"
        __queue_args__ = {"order_by": "id desc"}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert_queue(Stack, claim="status, id DESC")


def test_a_tables_own_words_stand_in_default_and_indexes() -> None:
    class Fax(JobMixin, Base):
        __tablename__ = "fax"
        __queue_args__ = {"names": {"unclaimed": "unsent", "claimed": "sending"}}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)

    table = table_of(Fax)

    assert columns(table, "status") == ["status VARCHAR(16) DEFAULT 'unsent' NOT NULL"]
    assert indexes(table) == [
        "CREATE INDEX ix_fax_claim ON fax (status, id) WHERE status = 'unsent'",
        "CREATE INDEX ix_fax_reap ON fax (status, owner_date) WHERE status = 'sending'",
    ]


def test_further_ready_statuses_are_served_by_the_index() -> None:
    class Video(JobMixin, Base):
        __tablename__ = "video"
        __queue_args__ = {"ready": ["rendered", "cut"]}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert claim_index(Video) == (
        "CREATE INDEX ix_video_claim ON video (status, id) "
        "WHERE status IN ('unclaimed', 'rendered', 'cut')"
    )
    # SQLite would prove a partial index from the very same IN only, which no claim says.
    assert claim_index(Video, "sqlite") == "CREATE INDEX ix_video_claim ON video (status, id)"
