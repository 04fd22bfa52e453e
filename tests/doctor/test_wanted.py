"""Which index a queue wants, and what it is called; no server is asked."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import MetaData, Table, func, select

from sa_jobqueue import JobQueue
from sa_jobqueue.dialects.examination import IndexColumn, ServerIndex, normalised
from sa_jobqueue.doctor.index_checks import wanted_claim_index
from sa_jobqueue.model.indexes import index_name, index_of, reap_index
from sa_jobqueue.model.mapping import mapping_of
from tests.contract.round_models import Pet, Reader
from tests.models import Message

from .models import Mail, Subscription, advisory

TABLE = mapping_of(Mail).table
KIND, MAILED, ID = Subscription.kind, Subscription.mailed, Subscription.id
RECIPIENT, PRIORITY = Mail.recipient, Mail.priority


OF_ITS_KIND = select(MAILED).where(KIND == ID).scalar_subquery()
NEWEST = select(func.max(PRIORITY)).scalar_subquery()


@pytest.mark.parametrize(
    ("queue", "name", "columns"),
    [
        (JobQueue(Mail), "", "(status, priority, id)"),
        (JobQueue(Mail, order_by=PRIORITY), "", "(status, priority, id)"),
        (JobQueue(Mail, RECIPIENT != "a"), "", "(status, priority, id)"),
        (JobQueue(Mail, ready="new"), "_new_priority", "(status, priority, id)"),
        (JobQueue(Mail, order_by=RECIPIENT), "_recipient", "(status, recipient, id)"),
        (JobQueue(Mail, order_by=RECIPIENT.asc()), "_recipient", "(status, recipient, id)"),
        (JobQueue(Mail, order_by=(RECIPIENT, RECIPIENT.desc())), None, "(status, recipient, id)"),
        (JobQueue(Mail, order_by=(RECIPIENT, Mail.status)), None, "(status, recipient, id)"),
        (JobQueue(Mail, order_by=Mail.id.desc()), "_id_desc", "(status, id DESC)"),
        (
            JobQueue(Mail, RECIPIENT == "r", order_by=(PRIORITY.desc(), RECIPIENT)),
            "_recipient_priority_desc",
            "(recipient, status, priority DESC, id)",
        ),
        (JobQueue(Message), "_sequence_desc", "(message_status, sequence DESC, id)"),
        (advisory(KIND == 1, MAILED == 0, order_by=(MAILED, KIND)), None, "(kind, mailed, id)"),
        (advisory(KIND == 1, KIND < 3, MAILED < 7), "_kind_mailed", "(kind, mailed, id)"),
        (advisory(KIND == 1, order_by=(KIND, MAILED.desc())), None, "(kind, mailed DESC, id)"),
        (JobQueue(Pet, Pet.round == 7), "", "(status, round, id)"),
        (JobQueue(Reader, strategy="advisory"), "", "(round, id)"),
        (JobQueue(Reader, Reader.round == 7, strategy="advisory"), "", "(round, id)"),
        # what is compared with the row's own columns is not constant
        (advisory(KIND == 1, MAILED == KIND, order_by=MAILED), None, "(kind, mailed, id)"),
        (advisory(KIND == 1, MAILED == OF_ITS_KIND), None, "(kind, id)"),
        (advisory(MAILED == NEWEST, order_by=(MAILED, KIND)), None, "(mailed, kind, id)"),
    ],
)
def test_a_queue_wants_its_columns_once_and_the_models_index_where_it_serves(
    queue: JobQueue[Any], name: str | None, columns: str
) -> None:
    wanted = wanted_claim_index(queue.plan.spec)

    assert str(wanted) == columns
    assert name in (None, str(wanted.index.name).rpartition("claim")[2])
    assert wanted.of_model is (name == "")


# -- an index of the database that does -----------------------------------

PREDICATE = "((status)::text = 'unclaimed'::text)"


def index(*names: str, predicate: str | None = None, **more: Any) -> ServerIndex:
    columns = (name.partition(" ") for name in names)
    parts = tuple(IndexColumn(name, bool(descending)) for name, _, descending in columns)
    return ServerIndex("ix", parts, predicate=predicate, **more)


BY_PRIORITY = JobQueue(Mail)
OF_RECIPIENT = JobQueue(Mail, RECIPIENT == "r", order_by=(RECIPIENT.desc(), PRIORITY))
BY_CHANNEL = JobQueue(Message, Message.channel == "sms")


@pytest.mark.parametrize(
    ("queue", "there", "fits"),
    [
        (BY_PRIORITY, index("status", "priority", "id"), True),
        (BY_PRIORITY, index("status", "priority", "id", "recipient"), True),
        (BY_PRIORITY, index("status", "priority", implied=(IndexColumn("id"),)), True),
        (BY_PRIORITY, index("status", "priority desc", "id desc"), True),
        (BY_PRIORITY, index("priority", "id", predicate=PREDICATE), True),
        (BY_PRIORITY, index("status"), False),
        (BY_PRIORITY, index("status", "id", "priority"), False),
        (BY_PRIORITY, index("status", "priority desc", "id"), False),
        (BY_PRIORITY, index("status", "owner", "priority", "id"), False),
        (BY_PRIORITY, index("priority", "id"), False),
        (BY_PRIORITY, index("priority", "id", predicate="(status = 'done'::text)"), False),
        (BY_PRIORITY, index("status", "priority", "id", ordered=False), False),
        (BY_PRIORITY, index("status", "priority", "id", unusable="it is invalid"), False),
        (OF_RECIPIENT, index("status", "recipient", "priority", "id"), True),
        (OF_RECIPIENT, index("recipient", "status", "priority", "id"), True),
        (OF_RECIPIENT, index("status", "priority", "recipient", "id"), True),
        (OF_RECIPIENT, index("status", "priority", "id"), True),
        (OF_RECIPIENT, index("status", "touched", "priority", "id"), False),
        (BY_CHANNEL, index("channel", "message_status", "sequence desc", "id"), True),
        (BY_CHANNEL, index("message_status", "channel", "sequence desc", "id"), True),
        (JobQueue(Message), index("channel", "message_status", "sequence desc", "id"), False),
        (JobQueue(Mail, order_by=func.lower(RECIPIENT)), index("status", "id"), False),
        (advisory(), index("kind", "mailed"), True),
        (advisory(), index("kind"), False),
        (advisory(), index("kind", "id"), False),
        (advisory(KIND == 1), index("kind"), True),
    ],
)
def test_an_index_fits_that_leads_to_the_jobs_in_order(
    queue: JobQueue[Any], there: ServerIndex, fits: bool
) -> None:
    wanted = wanted_claim_index(queue.plan.spec)

    assert wanted.fitted_by(there, "status = 'unclaimed'") is fits


@pytest.mark.parametrize(
    ("printed", "written"),
    [
        (PREDICATE, "status = 'unclaimed'"),
        ("(status = 'unclaimed'::bpchar)", "\"status\" = 'unclaimed'"),
        (
            "((status)::text = ANY ((ARRAY['a'::character varying, 'b'::text])::text[]))",
            "status IN ('a', 'b')",
        ),
        (
            "((status)::text <> ALL ((ARRAY['a'::character varying, 'b'::text])::text[]))",
            "(status NOT IN ('a', 'b'))",
        ),
        ("(job_status = 'new'::character varying(16))", "job_status = 'new'"),
    ],
)
def test_a_predicate_is_the_same_however_it_is_printed(printed: str, written: str) -> None:
    assert normalised(printed) == normalised(written)
    assert normalised(printed) != normalised("status = 'done'")


# -- names --------------------------------------------------------------


def test_a_queue_with_its_own_status_has_its_own_reap_index() -> None:
    mapping = mapping_of(Mail)

    assert reap_index(mapping, "claimed") is index_of(TABLE, "reap")
    assert reap_index(mapping, "being sent").name == "ix_doctor_mail_reap_being_sent"
    assert len(TABLE.indexes) == 2


@pytest.mark.parametrize("table", ["t", "long_" * 12, "ü" * 40])
@pytest.mark.parametrize("purpose", ["claim", "claim_" + "kind_" * 20, "claim_" + "kind_" * 21])
def test_a_name_is_short_enough_and_tells_tables_and_purposes_apart(
    table: str, purpose: str
) -> None:
    name = index_name(Table(table, MetaData()), purpose)
    others = [
        index_name(Table(f"{table}_", MetaData()), purpose),
        index_name(Table(table, MetaData()), f"{purpose}_"),
    ]

    assert len(name.encode()) <= 63
    assert name.startswith("ix_")
    assert name not in others
