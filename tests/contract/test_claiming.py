"""What claim() promises, on every engine and with every strategy."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, insert, inspect, literal_column, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import (
    ORMExecuteState,
    Session,
    joinedload,
    scoped_session,
    sessionmaker,
    with_loader_criteria,
)

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    JobStatus,
    claim,
    complete,
    enqueue,
    is_transient,
)
from tests.models import (
    Account,
    Animal,
    Cat,
    Document,
    Dog,
    Email,
    Letter,
    Message,
    Order,
    Pair,
    Task,
    add_emails,
    add_tasks,
    names,
    recipients,
)
from tests.support import statements_seen

Sessions = Callable[..., Session]

MARKING = ("skip_locked", "candidates", "update_then_select", "compare_and_set")


def test_a_claim_takes_the_first_jobs_in_key_order(session: Session, strategy: str) -> None:
    add_emails(session, "c", "a", "b", "d")

    emails = claim(session, Email, owner="w", limit=3, strategy=strategy)

    assert recipients(emails) == ["c", "a", "b"]


@pytest.mark.strategies(*MARKING)
def test_a_claimed_job_shows_status_owner_and_time(session: Session, strategy: str) -> None:
    add_emails(session, "a")
    before = datetime.now(UTC) - timedelta(minutes=1)

    email = claim(session, Email, owner=5, strategy=strategy).first()

    assert email is not None
    assert (email.status, email.owner) == (JobStatus.CLAIMED, "5")
    assert email.owner_date is not None
    assert email.owner_date.tzinfo is UTC
    assert before < email.owner_date < before + timedelta(minutes=2)


@pytest.mark.strategies(*MARKING)
def test_what_a_claim_shows_is_what_it_wrote(
    session: Session, other: Session, strategy: str
) -> None:
    add_tasks(session, "a", "b")
    claimed = claim(session, Task, owner="w", limit=2, strategy=strategy)
    session.commit()

    written = other.scalars(select(Task).order_by(Task.id)).all()

    columns = ("status", "owner", "owner_date", "attempts", "touched", "run_at")
    assert [[getattr(task, name) for name in columns] for task in claimed] == [
        [getattr(task, name) for name in columns] for task in written
    ]
    assert claimed[0].touched == "touched"


def test_an_empty_queue_gives_an_empty_claim(session: Session, strategy: str) -> None:
    claimed = claim(session, Email, owner="w", limit=5, strategy=strategy)

    assert (len(claimed), claimed.first()) == (0, None)


def test_two_claimers_never_share_a_job(session: Session, other: Session, strategy: str) -> None:
    add_emails(session, *"abcdef")

    first = claim(session, Email, owner="1", limit=3, strategy=strategy)
    if strategy in ("compare_and_set", "update_then_select"):
        session.commit()  # one writer at a time, or an UPDATE that waits: no row is passed over
    second = claim(other, Email, owner="2", limit=3, strategy=strategy)

    assert (recipients(first), recipients(second)) == (["a", "b", "c"], ["d", "e", "f"])


def test_the_predicate_stands_inside_the_limit(session: Session, strategy: str) -> None:
    add_emails(session, *["poison"] * 20, "good")

    emails = claim(session, Email, Email.recipient == "good", owner="w", strategy=strategy)

    assert recipients(emails) == ["good"]


def test_several_criteria_are_joined_by_and(session: Session, strategy: str) -> None:
    add_emails(session, "ab", "ac", "bc")

    emails = claim(
        session,
        Email,
        Email.recipient.like("a%"),
        Email.recipient.like("%c"),
        owner="w",
        limit=5,
        strategy=strategy,
    )

    assert recipients(emails) == ["ac"]


def test_smaller_priorities_and_older_jobs_come_first(session: Session, strategy: str) -> None:
    add_tasks(session, "low1", priority=5)
    add_tasks(session, "high1", "high2", priority=-5)
    add_tasks(session, "middle")
    add_tasks(session, "low2", priority=5)

    tasks = claim(session, Task, owner="w", limit=4, strategy=strategy)

    assert names(tasks) == ["high1", "high2", "middle", "low1"]


def test_a_job_is_not_claimed_before_its_time(session: Session, strategy: str) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    add_tasks(session, "later", run_at=tomorrow, priority=-1)
    add_tasks(session, "now", "long due")
    session.execute(update(Task).where(Task.name == "long due").values(run_at=yesterday))
    session.commit()

    tasks = claim(session, Task, owner="w", limit=5, strategy=strategy)

    assert names(tasks) == ["long due", "now"]


def test_the_callers_order_replaces_the_claim_order(session: Session, strategy: str) -> None:
    add_tasks(session, "a", "c", "b", "d", priority=3)

    tasks = claim(session, Task, owner="w", limit=3, order_by=Task.name.desc(), strategy=strategy)

    assert names(tasks) == ["d", "c", "b"]


def test_an_object_loaded_before_shows_the_claimed_state(
    session: Session, other: Session, strategy: str
) -> None:
    (email,) = add_emails(session, "a")
    session.commit()
    other.execute(update(Email).values(subject="new"))
    other.commit()

    claimed = claim(session, Email, owner="w", strategy=strategy)

    assert claimed.first() is email
    assert email.subject == "new"
    assert email.status == ("unclaimed" if strategy == "held" else "claimed")


def test_pending_changes_reach_the_database_before_they_could_be_overwritten(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session(autoflush=False)
    (email,) = add_emails(session, "a")
    email.subject = "mine"
    session.add(Email(recipient="b"))

    claimed = claim(session, Email, owner="w", limit=5, strategy=strategy)

    assert recipients(claimed) == ["a", "b"]
    assert email.subject == "mine"


def test_nothing_of_the_callers_is_committed_or_expired(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session(expire_on_commit=True)
    add_emails(session, "a")
    account = Account(name="x")
    session.add(account)
    session.flush()

    claim(session, Email, owner="w", strategy=strategy)

    assert not inspect(account).expired_attributes
    session.rollback()
    assert session.scalars(select(Account)).all() == []
    assert session.scalars(select(Email.status)).all() == ["unclaimed"]


def test_jobs_committed_after_an_empty_claim_are_found_by_the_next(
    session: Session, other: Session, strategy: str
) -> None:
    assert not claim(session, Email, owner="w", strategy=strategy)
    if strategy == "compare_and_set":
        session.commit()  # an open write would keep the other from inserting
    add_emails(other, "a")

    assert recipients(claim(session, Email, owner="w", strategy=strategy)) == ["a"]


@pytest.mark.only_on("mysql", "mariadb")
def test_new_jobs_are_found_in_a_callers_repeatable_read_transaction(
    engine: Engine, new_session: Sessions, other: Session, strategy: str
) -> None:
    session = new_session(engine.execution_options(isolation_level="REPEATABLE READ"))
    allow_changed_records(session)
    account = Account(name="x")
    session.add(account)
    session.flush()
    assert session.scalars(select(Email)).all() == []  # the snapshot is taken
    add_emails(other, "a", "b")

    found = claim(session, Email, owner="w", limit=2, strategy=strategy)

    assert recipients(found) == ["a", "b"]
    assert found[0].status == ("unclaimed" if strategy == "held" else "claimed")
    assert not inspect(account).expired_attributes


def allow_changed_records(session: Session, *, allowed: bool = True) -> None:
    """Have MariaDB read what changed since the snapshot; since 11.6.2 it refuses by default."""
    connection = session.connection()
    if connection.dialect.is_mariadb:  # type: ignore[attr-defined]  # on MySQL's dialects
        value = "OFF" if allowed else "ON"
        connection.exec_driver_sql(f"SET SESSION innodb_snapshot_isolation = {value}")


@pytest.mark.only_on("mariadb")
def test_a_record_changed_since_the_snapshot_is_claimed_or_a_transient_error(
    new_session: Sessions, other: Session, strategy: str
) -> None:
    add_emails(other, "a", "b")
    session = new_session()
    allow_changed_records(session, allowed=False)
    assert len(session.scalars(select(Email.id)).all()) == 2
    other.execute(update(Email).values(subject="changed"))
    other.commit()

    try:
        claimed = recipients(claim(session, Email, owner="w", strategy=strategy))
    except DBAPIError as error:
        claimed = ["refused"] if is_transient(error) else []
    allow_changed_records(session)  # on this very connection, which goes back to its pool

    assert claimed in (["a"], ["refused"])


@pytest.mark.only_on("mysql", "mariadb")
def test_a_snapshot_taken_by_a_plain_read_is_noticed(
    new_session: Sessions, other: Session, strategy: str
) -> None:
    session = new_session()  # the engine's default, REPEATABLE READ
    allow_changed_records(session)
    assert session.scalar(select(Email.id)) is None  # a SELECT tells the driver nothing of it
    add_emails(other, "a")

    assert recipients(claim(session, Email, owner="w", strategy=strategy)) == ["a"]


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.strategies("candidates")
def test_a_transaction_that_a_verb_began_draws_candidates_each_time(
    session: Session, other: Session, strategy: str
) -> None:
    add_emails(other, "a", "b")
    claim(session, Email, owner="w", strategy=strategy)

    again = claim(session, Email, owner="w", strategy=strategy)

    assert (recipients(again), again.candidates) == (["b"], 1)


@pytest.mark.strategies("candidates")
def test_after_a_claim_that_lost_every_candidate_the_next_finds_new_jobs(
    session: Session, other: Session, strategy: str
) -> None:
    add_emails(session, "a", "b")
    claim(other, Email, owner="1", limit=2, strategy="skip_locked")
    lost = claim(session, Email, owner="2", limit=2, strategy=strategy)
    assert (len(lost), lost.candidates, lost.lost) == (0, 2, 2)
    other.commit()
    add_emails(other, "c")

    assert recipients(claim(session, Email, owner="2", strategy=strategy)) == ["c"]


@pytest.mark.strategies(*MARKING)
def test_two_autocommit_claimers_never_share_a_job(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    session, other = new_session(autocommit), new_session(autocommit)
    add_emails(session, *"abcdefgh")

    taken = [
        *claim(session, Email, owner="1", limit=3, strategy=strategy),
        *claim(other, Email, owner="2", limit=3, strategy=strategy),
        *claim(session, Email, owner="1", limit=3, strategy=strategy),
    ]

    assert recipients(taken) == list("abcdefgh")
    assert [email.owner for email in taken] == ["1"] * 3 + ["2"] * 3 + ["1"] * 2


@pytest.mark.strategies(*MARKING)
def test_a_finish_works_under_autocommit(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    add_tasks(session, "a", "b")
    claimed = claim(session, Task, owner="w", limit=2, strategy=strategy)

    complete(session, claimed[0])
    complete(session, claimed[1], delete=True)

    assert session.scalars(select(Task.status)).all() == ["done"]


def test_an_eagerly_joined_relationship_is_loaded_without_locking_it(
    session: Session, other: Session, strategy: str
) -> None:
    session.add(Letter(account=Account(name="x")))
    session.add(Letter())
    session.commit()
    session.expunge_all()

    letters = claim(session, Letter, owner="w", limit=2, strategy=strategy)

    assert ["account" in inspect(letter).dict for letter in letters] == [True, True]
    assert letters[0].account is not None
    assert letters[0].account.name == "x"
    if strategy != "compare_and_set":  # SQLite locks no rows
        other.execute(update(Account).values(name="y"))
        other.commit()


def test_a_joinedload_option_loads_without_a_join(session: Session, strategy: str) -> None:
    session.add(Letter(copy_to=Account(name="x")))
    session.commit()
    session.expunge_all()

    letter = claim(
        session, Letter, owner="w", strategy=strategy, options=[joinedload(Letter.copy_to)]
    ).first()

    assert letter is not None
    assert inspect(letter).dict["copy_to"].name == "x"


@pytest.mark.strategies(*MARKING)
def test_a_table_with_a_status_of_its_own_becomes_a_queue(session: Session, strategy: str) -> None:
    session.add_all([Order(), Order(job_priority=-1)])
    session.commit()

    first, second = claim(session, Order, owner="w", limit=2, strategy=strategy)

    assert first.id > second.id
    assert (first.job_status, first.job_owner, first.attempts) == ("claimed", "w", 1)
    assert (first.status, first.owner, first.priority) == ("new", 7, "whatever")


@pytest.mark.strategies(*MARKING)
def test_renamed_columns_own_words_and_own_order_are_used(session: Session, strategy: str) -> None:
    session.add_all([Message(sequence=number) for number in (1, 3, 2)])
    session.add(Message(sequence=9, channel="fax"))
    session.commit()

    messages = claim(
        session, Message, Message.channel == "sms", owner="w", limit=2, strategy=strategy
    )

    assert [message.sequence for message in messages] == [3, 2]
    assert {message.status for message in messages} == {"claimed"}
    statuses = session.scalars(text("SELECT message_status FROM message ORDER BY id"))
    assert statuses.all() == ["unsent", "claimed", "claimed", "unsent"]


def test_composite_keys_are_claimed_in_order(session: Session, strategy: str) -> None:
    keys = [(2, "a"), (1, "b"), (1, "a")]
    enqueue(session, Pair, [{"left": left, "right": right} for left, right in keys], priority=1)
    session.commit()

    pairs = claim(session, Pair, owner="w", limit=2, strategy=strategy)

    assert [(pair.left, pair.right) for pair in pairs] == [(1, "a"), (1, "b")]


def test_uuid_keys_are_claimed_by_the_column_that_orders_them(
    session: Session, strategy: str
) -> None:
    for created in (3, 1, 2):
        session.add(Document(id=uuid.UUID(int=10 - created), created=created))
    session.commit()

    documents = claim(session, Document, owner="w", limit=2, strategy=strategy)

    assert [document.created for document in documents] == [1, 2]


def test_a_class_of_a_hierarchy_claims_its_own_rows(session: Session, strategy: str) -> None:
    session.add_all([Animal(), Cat(), Dog(trick="roll"), Cat()])
    session.commit()
    session.expunge_all()

    cats = claim(session, Cat, owner="w", limit=1, strategy=strategy)
    dogs = claim(session, Dog, Dog.trick == "roll", owner="w", limit=5, strategy=strategy)
    if strategy == "held":
        return  # a held claim is passed over by others, not by its own transaction
    rest = claim(session, Animal, owner="w", limit=5, strategy=strategy)

    assert [type(cat) for cat in cats] == [Cat]
    assert [dog.trick for dog in dogs] == ["roll"]
    assert [type(animal) for animal in rest] == [Animal, Cat]


def test_criteria_of_do_orm_execute_hooks_hold_in_claims(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session()
    add_emails(session, *["tenant1"] * 3, *["tenant2"] * 3)
    from sqlalchemy import event

    @event.listens_for(session, "do_orm_execute")
    def only_tenant_2(state: ORMExecuteState) -> None:
        if state.is_select and not state.is_relationship_load:
            state.statement = state.statement.options(
                with_loader_criteria(Email, Email.recipient == "tenant2")
            )

    emails = claim(session, Email, owner="w", limit=2, strategy=strategy)
    rows = JobQueue(Email, strategy=strategy).claim_rows(session, owner="w", limit=1)

    assert recipients(emails) == ["tenant2"] * 2
    assert recipients(rows) == ["tenant2"]


def test_a_routing_session_claims_on_the_writer(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    from sqlalchemy import Delete, Update, create_engine

    replica = create_engine("sqlite://")  # without a single table

    class RoutingSession(Session):
        def get_bind(self, mapper=None, clause=None):  # type: ignore[no-untyped-def,override]
            if self._flushing or isinstance(clause, (Update, Delete)):
                return engine
            return replica

    with RoutingSession(expire_on_commit=False) as session:
        enqueue(session, Email, [{"recipient": "a"}, {"recipient": "b"}])
        session.commit()
        claimed = claim(session, Email, owner="w", limit=2, strategy=strategy)
        if strategy != "held":
            session.commit()
        complete(session, claimed)
        session.commit()
        assert session.get_bind(None) is replica  # type: ignore[no-untyped-call]  # left as it was

    assert recipients(claimed) == ["a", "b"]
    assert new_session().scalars(select(Email.status)).all() == ["done", "done"]
    replica.dispose()


def test_a_scoped_session_and_one_joined_to_an_outer_transaction_work(
    engine: Engine, strategy: str
) -> None:
    with engine.connect() as connection, connection.begin() as outer:
        if engine.dialect.name == "sqlite":  # its driver begins nothing before a SAVEPOINT
            connection.exec_driver_sql("BEGIN")
        factory = sessionmaker(
            connection, join_transaction_mode="create_savepoint", expire_on_commit=False
        )
        scoped = scoped_session(factory)
        add_emails(scoped(), "a", "b")

        claimed = claim(scoped, Email, owner="w", limit=5, strategy=strategy)
        complete(scoped, claimed)
        scoped.commit()

        assert recipients(claimed) == ["a", "b"]
        assert scoped.scalars(select(Email.status)).all() == ["done", "done"]
        scoped.remove()
        outer.rollback()
    with Session(engine) as session:
        assert session.scalars(select(Email)).all() == []


def test_schema_translate_map_is_followed(
    engine: Engine, new_session: Sessions, strategy: str, db_alias: str
) -> None:
    schema = "main" if db_alias == "sqlite" else engine.url.database
    if db_alias == "postgresql":
        schema = "elsewhere"
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA IF NOT EXISTS elsewhere"))
    translated = engine.execution_options(schema_translate_map={None: schema})
    Email.metadata.tables["email"].create(translated, checkfirst=True)
    session = new_session(translated)
    add_emails(session, "a")

    claimed = claim(session, Email, owner="w", strategy=strategy)
    complete(session, claimed, delete=True)
    session.commit()

    assert recipients(claimed) == ["a"]


def test_a_row_inserted_by_plain_sql_is_a_job(session: Session, strategy: str) -> None:
    session.execute(text("INSERT INTO task (name) VALUES ('plain')"))
    session.commit()

    (task,) = claim(session, Task, owner="w", limit=2, strategy=strategy)

    assert (task.name, task.priority) == ("plain", 0)
    assert task.attempts == (0 if strategy == "held" else 1)


def test_plain_rows_are_those_that_entities_would_be(
    session: Session, other: Session, strategy: str
) -> None:
    add_tasks(session, "a", "b", "c", priority=2)
    queue = JobQueue(Task, Task.name != "b", strategy=strategy)

    rows = queue.claim_rows(session, owner="w", limit=2)
    written = session.execute(
        select(*Task.__table__.c).where(Task.name != "b").order_by(Task.id)
    ).all()

    assert names(rows) == ["a", "c"]
    assert [row.status for row in rows] == [row.status for row in written]
    assert [row.owner for row in rows] == [row.owner for row in written]
    assert [row.attempts for row in rows] == [row.attempts for row in written]
    assert all(row.run_at.tzinfo is not None for row in rows)
    queue.complete(session, rows)
    session.commit()
    assert other.scalars(select(Task.status).order_by(Task.id)).all() == [
        "done",
        "unclaimed",
        "done",
    ]


def test_a_turn_finishes_one_batch_and_claims_the_next(
    session: Session, other: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    queue = JobQueue(Email, strategy=strategy)
    first = queue.claim(session, owner="w", limit=2)

    second = queue.turn(session, first, owner="w", limit=2)
    session.commit()

    assert (recipients(first), recipients(second)) == (["a", "b"], ["c", "d"])
    done = other.scalars(select(Email.recipient).where(Email.status == "done"))
    assert sorted(done) == ["a", "b"]


def test_a_queue_of_other_statuses_claims_those(session: Session, strategy: str) -> None:
    emails = add_emails(session, "a", "b")
    session.execute(update(Email).where(Email.id == emails[1].id).values(status="rendered"))
    session.commit()
    queue = JobQueue(Email, ready="rendered", during="sending", then="sent", strategy=strategy)

    claimed = queue.claim(session, owner="w", limit=5)
    queue.complete(session, claimed)

    assert recipients(claimed) == ["b"]
    assert claimed[0].status == "sent"


@pytest.mark.strategies(*MARKING)
def test_failed_and_released_jobs_return_to_the_queues_own_status(
    session: Session, strategy: str
) -> None:
    add_tasks(session, "a", "b", status="rendered")
    queue = JobQueue(Task, ready="rendered", during="sending", strategy=strategy)
    first, second = queue.claim(session, owner="w", limit=2)

    queue.fail(session, first, error="no")
    queue.release(session, second)

    assert [first.status, second.status] == ["rendered", "rendered"]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None])
def test_a_limit_below_one_is_refused(session: Session, strategy: str, limit: object) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        claim(session, Email, owner="w", limit=limit, strategy=strategy)  # type: ignore[arg-type]


@pytest.mark.parametrize("owner", ["", "x" * 65, "a~b", 1.5])
def test_an_owner_that_cannot_be_stored_is_refused(
    session: Session, strategy: str, owner: object
) -> None:
    with pytest.raises(ArgumentError, match="owner"):
        claim(session, Email, owner=owner, strategy=strategy)  # type: ignore[arg-type]


@pytest.mark.strategies(*MARKING)
def test_a_claim_that_marks_needs_an_owner(session: Session, strategy: str) -> None:
    with pytest.raises(ArgumentError, match="owner= is needed"):
        claim(session, Email, strategy=strategy)


def test_the_clock_is_the_databases_only(
    session: Session, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tasks(session, "a")

    with statements_seen(session.get_bind()) as seen:  # type: ignore[arg-type]
        claimed = claim(session, Task, owner="w", strategy=strategy)
        complete(session, claimed)

    database_clocks = ("statement_timestamp()", "UTC_TIMESTAMP(6)", "strftime(")
    assert any(clock in statement for statement in seen for clock in database_clocks)
    assert not any("CURRENT_TIMESTAMP" in statement for statement in seen)


def test_every_job_of_a_claim_has_the_same_time(session: Session, strategy: str) -> None:
    if strategy == "held":
        return  # it writes none
    add_emails(session, *"abcdefghij")

    claimed = claim(session, Email, owner="w", limit=10, strategy=strategy)

    assert len({email.owner_date for email in claimed}) == 1


def test_literal_percent_signs_in_a_predicate_work(session: Session, strategy: str) -> None:
    add_emails(session, "50%", "50")

    emails = claim(
        session,
        Email,
        Email.recipient == literal_column("'50%'"),
        owner="w",
        limit=5,
        strategy=strategy,
    )

    assert recipients(emails) == ["50%"]


def test_bulk_inserts_are_jobs_too(session: Session, strategy: str) -> None:
    session.execute(insert(Email), [{"recipient": "a"}, {"recipient": "b"}])

    assert recipients(claim(session, Email, owner="w", limit=5, strategy=strategy)) == ["a", "b"]
