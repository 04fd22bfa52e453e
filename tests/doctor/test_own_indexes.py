"""An index of a queue's own, from the doctor's advice to the migration and back."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, inspect

from sa_jobqueue import JobQueue
from sa_jobqueue.doctor import examine
from sa_jobqueue.migration import create_job_indexes, drop_job_indexes
from sa_jobqueue.testing import assert_claim_is_indexed
from sa_jobqueue.workflow import Workflow
from tests.migration.support import migrating

from .models import Alert, Mail, add_mails, run

pytestmark = pytest.mark.xdist_group("plans")

OURS = {"ix_doctor_mail_claim", "ix_doctor_mail_reap"}

QUEUES = [
    JobQueue(Mail, order_by=Mail.recipient.desc()),
    JobQueue(Mail, Mail.recipient == "r", order_by=(Mail.recipient, Mail.touched)),
    JobQueue(Mail, ready="new", order_by=Mail.touched),
]


def index_names(engine: Engine) -> set[str]:
    return {str(index["name"]) for index in inspect(engine).get_indexes("doctor_mail")}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queues_own_index_is_made_and_dropped_beside_the_models(
    engine: Engine, queue: JobQueue[Mail]
) -> None:
    with migrating(engine) as op:
        create_job_indexes(op, queue)

    assert len(index_names(engine) - OURS) == 1
    assert_claim_is_indexed(engine, queue)
    assert_claim_is_indexed(engine, Mail)

    with migrating(engine) as op:
        drop_job_indexes(op, queue)

    assert index_names(engine) == OURS


@pytest.mark.parametrize("number", [0, 5_000])
@pytest.mark.parametrize("queue", QUEUES[:2])
def test_the_index_that_a_finding_names_removes_the_finding(
    engine: Engine, queue: JobQueue[Mail], number: int
) -> None:
    if number:
        add_mails(engine, number)
    (finding,) = (finding for finding in examine(engine, queue).errors if finding.check == "index")
    create, _, helper = finding.fix.partition(" (while")

    run(engine, create.replace("%", "%%"))

    assert "create_job_indexes(op, queue)" in helper
    assert "__table_args__" in helper
    assert not examine(engine, queue).errors


@pytest.mark.parametrize("number", [0, 5_000])
def test_a_queue_that_the_models_index_serves_needs_none_of_its_own(
    engine: Engine, number: int
) -> None:
    if number:
        add_mails(engine, number)
    queue = JobQueue(Mail, Mail.priority == 3, order_by=(Mail.priority, Mail.id))

    with migrating(engine) as op:
        create_job_indexes(op, JobQueue(Mail))

    assert index_names(engine) == OURS
    assert_claim_is_indexed(engine, queue)


def test_of_a_class_with_equality_the_queue_with_its_criterion_is_asked_for(
    engine: Engine,
) -> None:
    (finding,) = examine(engine, Alert).errors

    assert "begins with channel" in finding.message
    assert finding.fix.startswith("give the queue with its criterion, as in JobQueue(Alert, Alert.")
    with pytest.raises(AssertionError, match="give the queue with its criterion") as caught:
        assert_claim_is_indexed(engine, Alert)
    assert "CREATE INDEX" not in str(caught.value)
    assert_claim_is_indexed(engine, JobQueue(Alert, Alert.channel == "sms"))


def test_a_step_of_a_workflow_is_examined_as_its_queue_is(engine: Engine) -> None:
    workflow = Workflow(Mail)

    @workflow.step("unclaimed", during="claimed", then="done")
    def send(mail: Mail) -> None: ...

    assert_claim_is_indexed(engine, send)
    assert examine(engine, send).queue == repr(send.queue)
