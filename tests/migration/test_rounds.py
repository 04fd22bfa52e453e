"""The columns and the table of rounds are added and dropped."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, RoundMixin, start_round
from sa_jobqueue.migration import (
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
)
from sa_jobqueue.model.mapping import any_mapping_of
from sa_jobqueue.model.round_table import round_table
from tests.migration.support import ORDERS, adopt, claimed, differences, insert_orders, migrating


class RoundBase(DeclarativeBase):
    pass


class Mailing(JobMixin, RoundMixin, RoundBase):
    """The orders as a queue with rounds."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(50))


class LonelyBase(DeclarativeBase):
    pass


class Lonely(RoundMixin, LonelyBase):
    """The orders with RoundMixin only."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(50))


@pytest.mark.parametrize("table", ["orders", Mailing, Mailing.__table__])
def test_rows_that_were_there_are_in_no_round_until_one_is_started(
    shop: Engine, table: Any
) -> None:
    insert_orders(shop, [1, 2, 3])
    mixins = (JobMixin, RoundMixin) if table == "orders" else ()

    with migrating(shop, target_metadata=RoundBase.metadata) as op:
        add_job_columns(op, table, *mixins, existing_rows="done")
        create_claim_index(op, table, *mixins)
        create_reap_index(op, table, *mixins)

    assert differences(shop, RoundBase.metadata) == []
    assert claimed(shop, Mailing) == []
    assert start_round(shop, Mailing, Mailing.amount > 1) == 1
    assert claimed(shop, Mailing) == [2, 3]
    with migrating(shop) as op:
        drop_reap_index(op, "orders")
        drop_claim_index(op, "orders")
        drop_job_columns(op, "orders", JobMixin, RoundMixin)
    assert differences(shop, ORDERS.metadata) == []


@pytest.mark.parametrize("table", ["orders", Lonely])
def test_round_mixin_alone_is_added_and_dropped(shop: Engine, table: Any) -> None:
    mixins = (RoundMixin,) if table == "orders" else ()

    with migrating(shop) as op:
        add_job_columns(op, table, *mixins, existing_rows=None)
        create_claim_index(op, table, *mixins)
    assert differences(shop, LonelyBase.metadata) == []

    with migrating(shop) as op:
        drop_claim_index(op, "orders")
        drop_job_columns(op, "orders", RoundMixin)
    assert differences(shop, ORDERS.metadata) == []


@pytest.mark.only_on("sqlite", "postgresql")
def test_the_table_of_the_rounds_may_be_there_already(shop: Engine) -> None:
    round_table(any_mapping_of(Mailing)).create(shop)

    for _ in range(2):
        adopt(shop, "done", JobMixin, RoundMixin)

    assert start_round(shop, Mailing) == 1
