"""Names of columns, indexes and keys; __queue_args__; no server is asked."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import pytest
from sqlalchemy import BigInteger, Integer, MetaData, SmallInteger, String, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    PriorityMixin,
    QueueColumns,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
)
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.model.round_table import round_table
from tests.unit.mapping import DIALECTS, Base, assert_queue, columns, indexes, table_of

#: As SQLAlchemy's own pages write columns that several classes share.
StateText = Annotated[str, mapped_column(String(64), index=True)]


def claim_index(entity: Any, dialect: str = "postgresql") -> str:
    (made,) = (text for text in indexes(table_of(entity), dialect) if "_claim ON" in text)
    return made


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
def test_a_naming_convention_without_a_constraint_name_keeps_our_names(convention: str) -> None:
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


def test_round_mixin_alone_has_only_an_index_of_round_and_key() -> None:
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

    with pytest.raises(ArgumentError, match="the table that records the rounds of Hotel"):

        class Hotel(JobMixin, RoundMixin, Base):
            __tablename__ = "hotel"
            id: Mapped[int] = mapped_column(primary_key=True)


# Names of the user's own


def test_a_column_may_be_renamed_in_the_body() -> None:
    class Sms(JobMixin, PriorityMixin, Base):
        __tablename__ = "sms"
        id: Mapped[int] = mapped_column(primary_key=True)
        status = mapped_column("sms_status", String(20))
        priority = mapped_column("urgency", SmallInteger, nullable=False)

    assert columns(table_of(Sms), "sms_status", "urgency") == [
        "sms_status VARCHAR(20)",
        "urgency SMALLINT NOT NULL",
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


@pytest.mark.parametrize("status", ["state", "status"])
def test_a_column_that_the_class_declares_by_a_given_name_serves_as_it_is(status: str) -> None:
    body = {
        "__tablename__": f"galaxy_{status}",
        "id": mapped_column(Integer, primary_key=True),
        status: mapped_column(String(64), index=True),
        "heat": mapped_column(BigInteger, nullable=False, server_default="7"),
    }
    mixins = (JobMixin.named(status=status), PriorityMixin.named(priority="heat"), Base)

    table = table_of(type(f"Galaxy_{status}", mixins, body))

    assert columns(table, status, "heat") == [
        f"{status} VARCHAR(64)",
        "heat BIGINT DEFAULT '7' NOT NULL",
    ]
    assert f"CREATE INDEX ix_{table.name}_{status} ON {table.name} ({status})" in indexes(table)
    default: Any = table.c[status].default
    assert default.arg == "unclaimed"  # for jobs that the ORM inserts


def test_a_given_name_may_be_typed_by_an_annotation_alone() -> None:
    class Star(JobMixin.named(status="state"), Base):  # type: ignore[misc]  # a call
        __tablename__ = "star_annotated"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[StateText]

    assert columns(table_of(Star), "state") == ["state VARCHAR(64) NOT NULL"]
    assert "ix_star_annotated_state" in index_names(Star)


# __queue_args__


@pytest.mark.parametrize(("most", "ddl"), [(5, " DEFAULT '5'"), (None, "")])
def test_max_attempts_is_the_default_of_its_column(most: int | None, ddl: str) -> None:
    class Base(DeclarativeBase):
        pass

    class Mail(JobMixin, RetryMixin, Base):
        __tablename__ = "mail"
        __queue_args__ = {"max_attempts": most}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert columns(table_of(Mail), "max_attempts") == [f"max_attempts INTEGER{ddl}"]


def test_a_long_word_makes_the_status_column_long_enough() -> None:
    class Deed(JobMixin, Base):
        __tablename__ = "deed"
        __queue_args__ = {"ready": ["waiting_for_the_notary"]}  # noqa: RUF012 - as users write it
        id: Mapped[int] = mapped_column(primary_key=True)

    assert columns(table_of(Deed), "status") == ["status VARCHAR(22) DEFAULT 'unclaimed' NOT NULL"]


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
    # SQLite uses a partial index only for the very same IN, which no claim has.
    assert claim_index(Video, "sqlite") == "CREATE INDEX ix_video_claim ON video (status, id)"


# Renamed mixins with types


def test_a_renamed_mixin_with_annotations_is_the_same_as_a_named_one() -> None:
    @JobMixin.renamed(status="job_status", owner="job_owner")
    class ParcelJob(QueueColumns):
        job_status: Mapped[str]
        job_owner: Mapped[str | None]

    class Parcel(ParcelJob, Base):
        __tablename__ = "parcel_typed"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    class Twin(JobMixin.named(status="job_status", owner="job_owner"), Base):  # type: ignore[misc]
        __tablename__ = "parcel_named"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    def shown(entity: Any) -> list[str]:
        return [
            repr(column).replace("parcel_named", "parcel_typed") for column in table_of(entity).c
        ]

    assert mapping_of(Parcel).attributes == mapping_of(Twin).attributes
    assert columns(table_of(Parcel)) == columns(table_of(Twin))
    assert shown(Parcel) == shown(Twin)
    assert claim_index(Parcel).replace("typed", "named") == claim_index(Twin)


def test_a_renamed_column_may_be_annotated_in_the_class() -> None:
    class Ticket(JobMixin.named(status="job_status"), Base):  # type: ignore[misc]  # a call
        __tablename__ = "ticket_annotated"
        id: Mapped[int] = mapped_column(primary_key=True)
        job_status: Mapped[str]

    assert str(table_of(Ticket).c.job_status.type) == "VARCHAR(16)"


def test_a_renamed_mixin_annotates_its_columns_only() -> None:
    with pytest.raises(ArgumentError, match="JobTypo annotates job_stauts, which is no column"):

        @JobMixin.renamed(status="job_status")
        class JobTypo(QueueColumns):
            job_stauts: Mapped[str]


def test_a_renamed_mixin_has_no_columns_under_the_old_names() -> None:
    with pytest.raises(ArgumentError, match=r"whose only base is QueueColumns, and .* JobMixin"):

        @JobMixin.renamed(status="job_status")
        class Both(JobMixin):
            pass


def test_a_renamed_mixin_refuses_unknown_columns() -> None:
    with pytest.raises(ArgumentError, match="JobMixin has no column 'state' to name"):
        JobMixin.renamed(state="job_state")
