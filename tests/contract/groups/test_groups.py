"""A job waits until others have ended: which verbs count them, and when it can be claimed."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, func, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    JobMixin,
    JobQueue,
    MissingTable,
    cancel,
    cancel_claimed,
    claim,
    complete,
    count_by_status,
    enqueue,
    fail,
    prune,
    reap,
    release,
    renew,
    retry,
    start_round,
)
from sa_jobqueue.errors import ArgumentError
from sa_jobqueue.groups import (
    Group,
    GroupMixin,
    Groups,
    WaitingMixin,
    add_to_group,
    after,
    group_progress,
    group_table,
    recount,
)
from tests.models import Email
from tests.support import statements_seen, with_empty_tables

from .models import (
    Base,
    Clip,
    Film,
    Letter,
    Part,
    Picture,
    Report,
    claimed,
    grouped,
    progress,
    workflow,
)

NOW = timedelta(0)

ANYWHERE = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    with_empty_tables(engine, Base.metadata)


# -- when it can be claimed ---------------------------------------------------


def test_the_finish_of_the_last_member_makes_it_claimable_in_its_own_transaction(
    session: Session, other: Session
) -> None:
    group, _, report = grouped(session, 3)
    assert report.status == "waiting"
    assert [part.group_id for part in claimed(session, 2)] == [group.id] * 2

    complete(session, claimed(session, 3))
    complete(session, JobQueue(Part).claimed_by(session, "w")[:1])
    session.commit()
    assert (report.status, progress(session, group)) == ("waiting", (1, 0, 2))

    complete(session, JobQueue(Part).claimed_by(session, "w"))
    assert report.status == "unclaimed"
    assert other.get_one(Report, report.id).status == "waiting"
    other.rollback()
    session.commit()

    assert list(claimed(other, entity=Report)) == [other.get_one(Report, report.id)]
    found = group_progress(session, group)
    assert (found.total, found.done) == (3, 3)
    assert found.settled_at is not None


def test_a_finish_that_is_rolled_back_counts_nothing(session: Session) -> None:
    group, _, report = grouped(session, 1)
    jobs = claimed(session)

    with session.begin_nested() as savepoint:
        complete(session, jobs)
        assert report.status == "unclaimed"
        savepoint.rollback()
    assert (report.status, progress(session, group)) == ("waiting", (1, 0, 0))
    complete(session, jobs)
    session.rollback()
    assert (report.status, progress(session, group)) == ("waiting", (1, 0, 0))


def test_no_claim_and_no_reap_sees_it_while_it_waits(session: Session) -> None:
    _, _, report = grouped(session, 1)

    assert not claim(session, Report, owner="w")
    assert not reap(session, Report, max_runtime=NOW)
    with pytest.raises(ArgumentError, match="only finished jobs are pruned"):
        prune(session, Report, older_than=NOW, statuses=["waiting"])
    assert count_by_status(session, Report)["waiting"] == 1
    assert JobQueue(Report).count_by_status(session)["waiting"] == 1
    assert retry(session, report) == []
    savepoint = session.begin_nested()
    assert JobQueue(Report).cancel(session, report) == [report]
    savepoint.rollback()
    assert cancel(session, report) == [report]
    complete(session, claimed(session))
    assert report.status == "cancelled"  # for whoever has cancelled it wanted that


def test_what_waits_for_nothing_can_be_claimed_at_once(session: Session) -> None:
    group, _, report = grouped(session, 0)

    assert report.status == "unclaimed"
    assert group_progress(session, group).settled_at is not None


@pytest.mark.parametrize(
    ("on_failure", "ends", "status"),
    [
        ("wait", ["done", "done"], "unclaimed"),
        ("wait", ["failed", "done"], "waiting"),
        ("wait", ["done", "cancelled"], "waiting"),
        ("run", ["done", "done"], "unclaimed"),
        ("run", ["failed"], "waiting"),
        ("run", ["failed", "cancelled"], "unclaimed"),
        ("cancel", ["done", "done"], "unclaimed"),
        ("cancel", ["failed"], "cancelled"),
        ("cancel", ["cancelled", "done"], "cancelled"),
    ],
)
def test_members_that_fail_hold_it_up_or_do_not_or_cancel_it(
    session: Session, on_failure: Any, ends: list[str], status: str
) -> None:
    _, parts, report = grouped(session, 2, on_failure=on_failure)

    for part, end in zip(parts, ends, strict=False):
        finish(session, part, end)
        session.commit()

    assert report.status == status


def finish(session: Session, part: Part, end: str) -> None:
    if end == "cancelled":
        cancel(session, part)
        return
    part.max_attempts = 1
    job = claim(session, Part, Part.id == part.id, owner="w")
    complete(session, job) if end == "done" else fail(session, job)


def test_a_failed_member_that_is_retried_and_done_lets_it_go_on(session: Session) -> None:
    group, (part,), report = grouped(session, 1)
    finish(session, part, "failed")
    assert progress(session, group) == (0, 1, 0)

    retry(session, part)
    assert progress(session, group) == (1, 0, 0)
    finish(session, part, "done")

    assert (report.status, progress(session, group)) == ("unclaimed", (0, 0, 1))


def test_a_member_that_is_retried_after_it_began_does_not_run_it_again(session: Session) -> None:
    _, (part,), report = grouped(session, 1)
    finish(session, part, "done")
    complete(session, claimed(session, entity=Report))

    retry(session, part)
    finish(session, part, "done")
    assert report.status == "done"

    # Also if it waits for another group by now.
    retry(session, report)
    after(session, [Part()], then=report)
    retry(session, part)
    finish(session, part, "done")
    assert report.status == "waiting"


# -- who ends and reopens members ---------------------------------------------


def job(session: Session) -> Any:
    return claimed(session)


#: What is done to the only member of a group, and what it counts as then.
VERBS: dict[str, tuple[Callable[[Session, Part], Any], tuple[int, int, int]]] = {
    "claim": (lambda s, p: claim(s, Part, owner="w"), (1, 0, 0)),
    "renew": (lambda s, p: renew(s, job(s)), (1, 0, 0)),
    "release": (lambda s, p: release(s, job(s)), (1, 0, 0)),
    "complete": (lambda s, p: complete(s, job(s)), (0, 0, 1)),
    "complete with values": (
        lambda s, p: complete(s, job(s), values=lambda it: {Part.name: str(it.id)}),
        (0, 0, 1),
    ),
    "complete by its fence": (lambda s, p: complete(s, job(s).fences), (0, 0, 1)),
    "complete, on a Connection": (lambda s, p: on_connection(s, complete), (0, 0, 1)),
    "complete to a status of one's own": (
        lambda s, p: complete(s, job(s), then="claimed"),
        (1, 0, 0),
    ),
    "delete=True": (lambda s, p: complete(s, job(s), delete=True), (0, 0, 1)),
    "turn": (lambda s, p: JobQueue(Part).turn(s, job(s), owner="w"), (0, 0, 1)),
    "turn, which deletes": (
        lambda s, p: JobQueue(Part).turn(s, job(s), owner="w", delete=True),
        (0, 0, 1),
    ),
    "turn on a Connection": (
        lambda s, p: on_connection(s, partial(JobQueue(Part).turn, owner="w", rows=True)),
        (0, 0, 1),
    ),
    "fail": (lambda s, p: fail(s, job(s), error="x"), (1, 0, 0)),
    "fail for good": (lambda s, p: finish(s, p, "failed"), (0, 1, 0)),
    "cancel_claimed": (lambda s, p: cancel_claimed(s, job(s)), (0, 1, 0)),
    "cancel": (lambda s, p: cancel(s, p), (0, 1, 0)),
    "a queue's cancel": (lambda s, p: JobQueue(Part).cancel(s, p), (0, 1, 0)),
    "held": (lambda s, p: held(s), (0, 0, 1)),
    "reap": (lambda s, p: job(s) and reap(s, Part, max_runtime=NOW), (1, 0, 0)),
    "reap the last attempt": (lambda s, p: reaped_for_good(s, p), (0, 1, 0)),
    "prune a failed one": (lambda s, p: pruned(s, p, "failed"), (0, 0, 1)),
    "prune a done one": (lambda s, p: pruned(s, p, "done"), (0, 0, 1)),
    "session.delete()": (lambda s, p: s.delete(p), (0, 0, 1)),
    "retry": (lambda s, p: retried(s, p), (1, 0, 0)),
}


def on_connection(session: Session, finish: Callable[..., Any]) -> None:
    fences = job(session).fences
    finish(session.connection(), fences)


def held(session: Session) -> None:
    strategy = "auto" if session.get_bind().dialect.name == "sqlite" else "held"
    complete(session, claim(session, Part, owner="w", strategy=strategy))


def reaped_for_good(session: Session, part: Part) -> None:
    part.max_attempts = 1
    claimed(session)
    reap(session, Part, max_runtime=NOW)


def pruned(session: Session, part: Part, status: str) -> None:
    finish(session, part, status)
    session.commit()
    assert prune(session, Part, older_than=NOW, statuses=[status]) == 1


def retried(session: Session, part: Part) -> None:
    finish(session, part, "failed")
    assert retry(session, part) == [part]


@pytest.mark.parametrize(
    ("verb", "isolation"),
    [
        *((verb, "usual") for verb in VERBS),
        *(
            pytest.param(verb, "AUTOCOMMIT", marks=ANYWHERE)
            for verb in VERBS
            if verb != "held"  # which needs a transaction
        ),
    ],
)
def test_each_verb_keeps_the_count(
    engine: Engine, session: Session, other: Session, verb: str, isolation: str
) -> None:
    group, (part,), report = grouped(session, 1)
    do, count = VERBS[verb]
    if isolation == "AUTOCOMMIT":
        session.close()
        session = Session(engine.execution_options(isolation_level="AUTOCOMMIT"))
        part, report = session.get_one(Part, part.id), session.get_one(Report, report.id)

    do(session, part)
    session.commit()

    assert progress(other, group) == count
    other.refresh(there := other.get_one(Report, report.id))
    assert there.status == ("unclaimed" if count == (0, 0, 1) else "waiting")
    assert recount(other, Part) == []
    session.close()


def test_members_of_several_classes_end_with_names_words_and_keys_of_their_own(
    session: Session,
) -> None:
    letter = Letter()
    parts = [Part(), Picture(page=1, place="top"), Picture(page=1, place="end")]
    group = after(session, parts, then=letter)
    session.commit()
    assert letter.status == "on hold"

    complete(session, claimed(session, 9))
    complete(session, claimed(session, 9, Picture))

    assert (letter.status, progress(session, group)) == ("unclaimed", (0, 0, 3))
    assert recount(session, Letter) == []

    more = [Picture(page=2, place="top"), Picture(page=2, place="end")]
    group = after(session, more, then=(letter := Letter()))
    session.delete(more[0])
    session.flush()
    assert progress(session, group) == (1, 0, 1)
    session.execute(delete(Picture))
    assert recount(session, Letter) == [Group(Letter, group.id)]
    session.expire_all()
    assert letter.status == "unclaimed"


def test_a_new_round_reopens_members(engine: Engine, session: Session) -> None:
    films, report = [Film(), Film()], Report()
    group = after(session, films, then=report)
    session.commit()
    done = claimed(session, 1, Film)
    complete(session, done)
    session.commit()

    for by in (session, engine):
        assert progress(session, group) == (1, 0, 1)
        session.commit()
        start_round(by, Film)
        session.commit()
        assert progress(session, group) == (2, 0, 0)
        complete(session, claimed(session, 1, Film))
        session.commit()
    complete(session, claimed(session, 1, Film))
    assert report.status == "unclaimed"


def test_a_step_of_a_workflow_ends_no_member_and_its_end_does(session: Session) -> None:
    clip, report = Clip(), Report()
    group = after(session, [clip], then=report)
    session.commit()
    (step,) = workflow

    step.queue.complete(session, step.queue.claim(session, owner="w"))
    assert (clip.status, progress(session, group)) == ("review", (1, 0, 0))
    workflow.signal(session, clip, "unclaimed")
    assert progress(session, group) == (1, 0, 0)
    step.queue.complete(session, step.queue.claim(session, owner="w"))
    workflow.signal(session, clip, "done")

    assert (report.status, progress(session, group)) == ("unclaimed", (0, 0, 1))


# -- members of members -------------------------------------------------------


def test_what_waits_may_be_a_member_and_something_may_wait_for_it(session: Session) -> None:
    inner, outer = Report(), Report()
    after(session, [inner], then=outer)
    after(session, [Part()], then=inner)
    session.commit()
    assert (inner.status, outer.status) == ("waiting", "waiting")

    complete(session, claimed(session))
    assert (inner.status, outer.status) == ("unclaimed", "waiting")
    complete(session, claimed(session, entity=Report))
    assert (inner.status, outer.status) == ("done", "unclaimed")


def test_what_a_group_cancels_counts_in_its_own_group(session: Session) -> None:
    part, inner, outer = Part(), Report(), Report()
    after(session, [part], then=inner, on_failure="cancel")
    after(session, [inner], then=outer, on_failure="cancel")

    cancel(session, part)

    assert (inner.status, outer.status) == ("cancelled", "cancelled")


def test_members_are_added_while_it_waits(session: Session) -> None:
    group, (part,), report = grouped(session, 1)

    add_to_group(session, Group(Part, part.group_id or 0), [Part(), Picture(page=1, place="x")])
    session.commit()
    complete(session, claimed(session, 2))
    assert (report.status, progress(session, group)) == ("waiting", (1, 0, 2))
    complete(session, claimed(session, 1, Picture))
    session.commit()
    assert report.status == "unclaimed"

    with pytest.raises(ArgumentError, match="nothing waits for group"):
        add_to_group(session, group, [Part()])
    session.rollback()


def test_jobs_that_are_there_become_members_as_what_they_are(session: Session) -> None:
    done, failed, open_, then = Part(), Part(max_attempts=1), Part(), Report()
    session.add_all([done, failed, open_, then])
    session.commit()
    complete(session, claim(session, Part, Part.id == done.id, owner="w"))
    fail(session, claim(session, Part, Part.id == failed.id, owner="w"))

    group = after(session, [done, failed, open_], then=then)

    assert (then.status, progress(session, group)) == ("waiting", (1, 1, 1))


def test_a_job_is_not_taken_out_of_a_group_that_others_have_put_it_into(
    session: Session, other: Session
) -> None:
    session.add(part := Part())
    session.commit()
    assert part.group_id is None
    first = after(other, [other.get_one(Part, part.id)], then=Report())
    other.commit()

    with pytest.raises(ArgumentError, match="one of the Part is a member of group"):
        after(session, [part], then=Report())
    session.rollback()

    assert progress(session, first) == (1, 0, 0)


# -- refusals -----------------------------------------------------------------


class Elsewhere(DeclarativeBase):
    pass


class Foreign(GroupMixin, JobMixin, Elsewhere):
    __tablename__ = "groups_foreign"
    id: Mapped[int] = mapped_column(primary_key=True)


class Plain(JobMixin, Elsewhere):
    __tablename__ = "groups_plain"
    id: Mapped[int] = mapped_column(primary_key=True)


SAME = Report()


@pytest.mark.parametrize(
    ("parts", "then", "options", "message"),
    [
        ([Part()], Plain(), {}, "Plain has no status for jobs that wait: add WaitingMixin"),
        ([Plain()], Report(), {}, "cannot be a member: its class needs GroupMixin"),
        ([Foreign()], Report(), {}, "and the metadata that the others have"),
        ([SAME], SAME, {}, "a job does not wait for itself"),
        ([Part(group_id=7)], Report(), {}, "is a member of group 7 already"),
        ([], Report(), {"on_failure": "ignore"}, "on_failure= is 'wait', 'run' or 'cancel'"),
        (["text"], Report(), {}, "is not a mapped class"),
    ],
)
def test_what_cannot_be_a_group_is_refused_before_anything_is_written(
    session: Session, parts: list[Any], then: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        after(session, parts, then=then, **options)

    assert not session.new
    assert session.scalar(select(func.count()).select_from(group_table(Base.metadata))) == 0


def test_a_job_that_is_claimed_or_waits_already_cannot_wait(session: Session) -> None:
    _, _, waits = grouped(session, 1)
    session.add(taken := Report())
    session.commit()
    claimed(session, entity=Report)

    for report in (waits, taken):
        with pytest.raises(ArgumentError, match="is claimed, has ended or waits already"):
            after(session, [Part()], then=report)
        session.rollback()


def test_enqueue_takes_no_members_as_it_counts_none(session: Session) -> None:
    group, _, _ = grouped(session, 1)

    with pytest.raises(
        ArgumentError, match=r"takes no group_id: give entities to after\(\) or add"
    ):
        enqueue(session, Part, [{"name": "a", "group_id": group.id}])
    assert enqueue(session, Part, [{"name": "a", "group_id": None}]) == 1


def test_a_job_that_was_cancelled_waits_for_its_next_group_only(session: Session) -> None:
    first, (part,), report = grouped(session, 1)
    cancel(session, report)
    retry(session, report)
    second = after(session, [Part()], then=report)
    session.commit()

    finish(session, part, "done")
    assert (report.status, progress(session, first)) == ("waiting", (0, 0, 1))
    complete(session, claimed(session))
    assert (report.status, progress(session, second)) == ("unclaimed", (0, 0, 1))


def test_a_group_needs_a_transaction(engine: Engine) -> None:
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(ArgumentError, match="under AUTOCOMMIT members could end before"):
            after(session, [Part()], then=Report())
        assert not session.new


def test_a_group_that_is_not_there_is_an_error(session: Session) -> None:
    with pytest.raises(ArgumentError, match="there is no group 99"):
        group_progress(session, Group(Part, 99))
    with pytest.raises(ArgumentError, match="nothing waits for group 99"):
        add_to_group(session, Group(Part, 99), [])
    with pytest.raises(ArgumentError, match="Email has no groups: add GroupMixin"):
        recount(session, Email)


def test_mixins_and_words_that_cannot_work_are_refused() -> None:
    class Own(DeclarativeBase):
        pass

    class Taken(Own):
        __tablename__ = "job_groups"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(InvalidRequestError, match="Table 'job_groups' is already defined"):

        class Member(GroupMixin, JobMixin, Own):
            __tablename__ = "member"
            id: Mapped[int] = mapped_column(primary_key=True)

    assert group_table(Own.metadata, "own_groups").name == "own_groups"
    with pytest.raises(ArgumentError, match="'done' is the word for another status already"):

        class Word(WaitingMixin, JobMixin, Own):
            __tablename__ = "word"
            __queue_args__ = {"waiting": "done"}  # noqa: RUF012
            id: Mapped[int] = mapped_column(primary_key=True)


def test_a_table_that_was_not_created_is_named(own_engine: Engine) -> None:
    Part.__table__.create(own_engine)  # type: ignore[attr-defined]  # it is a Table
    Report.__table__.create(own_engine)  # type: ignore[attr-defined]  # as above
    with Session(own_engine) as session, pytest.raises(MissingTable, match="job_groups"):
        after(session, [Part()], then=Report())


# -- what it costs ------------------------------------------------------------


def test_a_batch_costs_one_statement_for_each_group(engine: Engine, session: Session) -> None:
    for _ in range(3):
        grouped(session, 10)
    session.commit()
    jobs = claimed(session, 25)

    with statements_seen(engine) as seen:
        complete(session, jobs, values=lambda part: {Part.name: str(part.id % 5)})

    updates = [text for text in seen if text.startswith("UPDATE job_groups SET unfinished")]
    assert len(updates) == 3
    session.rollback()


# -- what plain SQL has changed -----------------------------------------------


def test_members_that_plain_sql_has_deleted_are_found(session: Session) -> None:
    group, (one, two), report = grouped(session, 2)
    later, _, waits = grouped(session, 1)
    complete(session, claim(session, Part, Part.id == two.id, owner="w"))
    session.execute(delete(Part).where(Part.id == one.id))
    session.commit()
    assert report.status == "waiting"

    assert recount(session, Report) == [Group(Report, group.id)]
    session.commit()

    session.refresh(report)
    assert (report.status, progress(session, group)) == ("unclaimed", (0, 0, 2))
    assert (waits.status, progress(session, later)) == ("waiting", (1, 0, 0))


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_correction_gives_way_to_a_verb_that_has_counted_meanwhile(
    session: Session, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, (one, _), report = grouped(session, 2)
    jobs = claimed(other, 2)
    session.execute(delete(Part).where(Part.id == one.id))
    session.commit()
    read = Groups.wrong

    def read_and_finish(groups: Groups, writer: Any) -> Any:
        found = read(groups, writer)
        complete(other, jobs[1:])
        other.commit()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Groups, "wrong", read_and_finish)
        assert recount(session, Part) == []
    session.commit()
    assert progress(session, group) == (1, 0, 1)

    assert recount(session, Part) == [Group(Part, group.id)]
    assert (report.status, progress(session, group)) == ("unclaimed", (0, 0, 2))


@pytest.mark.parametrize("isolation", ["usual", "AUTOCOMMIT"])
@pytest.mark.parametrize("verb", ["complete", "cancel"])
def test_a_count_that_fails_undoes_the_verb(
    engine: Engine, session: Session, other: Session, verb: str, isolation: str
) -> None:
    _, (part,), _ = grouped(session, 1)
    number = part.id
    session.close()
    if isolation == "AUTOCOMMIT":
        session = Session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    jobs = claimed(session) if verb == "complete" else session.get_one(Part, number)
    session.commit()

    def fail_to_count(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("UPDATE job_groups"):
            raise InterruptedError

    event.listen(engine, "before_cursor_execute", fail_to_count)
    try:
        with pytest.raises(InterruptedError):
            complete(session, jobs) if verb == "complete" else cancel(session, jobs)
    finally:
        event.remove(engine, "before_cursor_execute", fail_to_count)
    session.rollback()
    session.close()

    there = other.get_one(Part, number)
    assert there.status == ("claimed" if verb == "complete" else "unclaimed")


def test_groups_are_forgotten_long_after_they_were_settled(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _, _ = grouped(session, 0)
    open_, (part,), report = grouped(session, 1)
    recount(session, Part)
    assert group_progress(session, old).settled_at is not None

    monkeypatch.setattr("sa_jobqueue.groups.KEPT", timedelta(microseconds=-1_000_000))
    recount(session, Part)

    with pytest.raises(ArgumentError, match="there is no group"):
        group_progress(session, old)
    finish(session, part, "done")
    assert (report.status, progress(session, open_)) == ("unclaimed", (0, 0, 1))


def test_no_group_gets_the_number_of_one_that_was_forgotten(session: Session) -> None:
    """Members of the old group would count in the new one."""
    forgotten, _, _ = grouped(session, 0)
    session.execute(delete(group_table(Base.metadata)))

    new, _, _ = grouped(session, 0)

    assert new.id > forgotten.id


def test_a_row_that_is_lost_is_not_counted(session: Session, other: Session) -> None:
    group, _, _ = grouped(session, 1)
    jobs = claimed(session)
    reap(other, Part, max_runtime=NOW)
    other.commit()

    with pytest.raises(Exception, match="lost"):
        complete(session, jobs)
    session.commit()

    assert progress(session, group) == (1, 0, 0)
