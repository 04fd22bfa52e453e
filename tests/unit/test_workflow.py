"""The graph of a workflow: what it refuses, lists and draws; no database is asked."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, JobStatus, RetryMixin
from sa_jobqueue.process.runtime import THREADS
from sa_jobqueue.worker import Lane, Worker
from sa_jobqueue.worker.hands import Hands
from sa_jobqueue.worker.lanes import FAIR_EVERY, LaneOrder
from sa_jobqueue.workflow import InvalidTransition, NotWaiting, Workflow


class Base(DeclarativeBase):
    pass


class Part(JobMixin, RetryMixin, Base):
    """A part to be cut, drilled and packed; its indexes serve more statuses than the steps need."""

    __tablename__ = "part"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "ready": ["cut", "drilled", "1st.try-x", "end"],
        "during": ["drilling", "packing"],
    }
    id: Mapped[int] = mapped_column(primary_key=True)


class Plain(JobMixin, Base):
    """A class without index options."""

    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)


Declared = tuple[str, str, Any]


def workflow(*steps: Declared, entity: type[Any] = Part, **options: Any) -> Workflow[Any]:
    """Declare steps: ready, during, and then or several targets."""
    made: Workflow[Any] = Workflow(entity, **options)
    for ready, during, targets in steps:
        then, *branches = [targets] if isinstance(targets, str) else targets
        made.step(ready, during=during, then=then, branches=branches)(work)
    return made


def work(part: Part) -> None:
    """Do nothing."""


CUT = ("unclaimed", "claimed", "cut")
DRILL = ("cut", "drilling", "drilled")
PACK = ("drilled", "packing", "done")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "has no step: declare one"),
        ([CUT, DRILL, PACK, ("cut", "packing", "done")], "'cut' is the status of jobs claimed"),
        ([CUT, DRILL, ("drilled", "drilling", "done")], "'drilling' is the status .* in two steps"),
        ([("unclaimed", "cut", "done")], "do not serve every step"),
        ([CUT, ("cut", "drilling", "done"), ("done", "packing", "failed")], "both of jobs claimed"),
        ([CUT, DRILL], "leads to 'drilled', where a job would stay for ever"),
        ([CUT, ("cut", "drilling", ["done", "scrap"])], r"final=\['scrap'\]"),
        ([CUT, ("cut", "drilling", "claimed")], "leads to 'claimed'"),
        ([DRILL, PACK], "new rows of Part are 'unclaimed', and no step claims them"),
    ],
)
def test_a_graph_in_which_jobs_would_get_stuck_is_refused_at_its_first_use(
    steps: list[Declared], said: str
) -> None:
    declared = workflow(*steps)  # not checked yet: other steps may be declared later

    with pytest.raises(ArgumentError, match=said):
        _ = declared.steps


def test_every_first_use_checks_the_graph(engine: Engine) -> None:
    declared = workflow(CUT, DRILL)
    step = declared.step("drilled", during="packing", then="nowhere")(work)

    for use in (
        lambda: Worker(engine, declared),
        lambda: Worker(engine, step),
        lambda: step.queue,
        declared.diagram,
        lambda: declared.arrows,
        lambda: declared.unreached,
        lambda: declared.signal(None, 1, "cut"),  # type: ignore[arg-type]
        lambda: declared.retry(None, []),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match="'nowhere'"):
            use()


@pytest.fixture
def engine() -> Engine:
    return create_engine("sqlite://")


def test_a_step_that_the_indexes_do_not_serve_says_what_to_write() -> None:
    declared = workflow(CUT, DRILL, PACK, entity=Plain)

    with pytest.raises(ArgumentError) as raised:
        _ = declared.steps

    assert "'ready': ['cut', 'drilled'], 'during': ['drilling', 'packing']" in str(raised.value)
    assert "Plain.__queue_args__" in str(raised.value)


def test_an_existing_declaration_is_repeated_in_the_message() -> None:
    declared = workflow(CUT, ("cut", "shaping", "done"))

    with pytest.raises(ArgumentError, match=r"'during': \['drilling', 'packing', 'shaping'\]"):
        _ = declared.steps


@pytest.mark.parametrize("word", ["x" * 65, "it's", "", "é"])
def test_a_word_that_cannot_be_a_status_is_refused_where_it_is_written(word: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be a status"):
        workflow((word, "claimed", "done"))
    with pytest.raises(ArgumentError, match="cannot be a status"):
        workflow(("unclaimed", "claimed", ["done", word]))
    with pytest.raises(ArgumentError, match="cannot be a status"):
        Workflow(Part, final=[word])


def test_a_status_that_is_both_waited_in_and_claimed_is_refused() -> None:
    declared = workflow(CUT, DRILL, PACK)
    declared.waiting("drilled", signals="cut")

    with pytest.raises(ArgumentError, match="'drilled' cannot be the status both"):
        _ = declared.steps


def test_signals_of_a_status_are_declared_once() -> None:
    declared = Workflow(Part)
    declared.waiting("away", signals="back")

    with pytest.raises(ArgumentError, match="name all signals of a status in one declaration"):
        declared.waiting("away", signals="gone")


def test_a_signal_to_nowhere_is_refused() -> None:
    declared = workflow(("unclaimed", "claimed", "away"))
    declared.waiting("away", signals=["back"])

    with pytest.raises(ArgumentError, match="a signal in 'away' leads to 'back'"):
        _ = declared.steps


def test_a_later_step_mends_the_graph() -> None:
    declared = workflow(CUT, DRILL)
    with pytest.raises(ArgumentError):
        _ = declared.steps

    declared.step("drilled", during="packing", then="done")(work)

    assert [step.ready for step in declared] == ["unclaimed", "cut", "drilled"]


def test_later_declarations_are_checked_too() -> None:
    declared = workflow(CUT, DRILL, PACK)
    assert declared.steps

    declared.waiting("cut", signals="done")
    with pytest.raises(ArgumentError, match="'cut' cannot be the status both"):
        _ = declared.steps

    again = workflow(CUT, DRILL, PACK)
    assert again.steps
    again.step("end", during="packing", then="done")(work)
    with pytest.raises(ArgumentError, match="'packing' is the status"):
        _ = again.steps


def test_a_status_cannot_be_ready_and_claimed_in_one_model() -> None:
    with pytest.raises(ArgumentError, match="'both' cannot both wait for a claim and be claimed"):

        class Both(JobMixin, Base):
            __tablename__ = "both"
            __queue_args__ = {"ready": "both", "during": ["both"]}  # noqa: RUF012
            id: Mapped[int] = mapped_column(primary_key=True)


# -- an enum of the user's --------------------------------------------------


class P(StrEnum):
    """An enum with more members than the steps use."""

    CUT = "cut"
    DRILLING = "drilling"
    SCRAP = "scrap"
    LOST = "lost"


def test_words_that_are_missing_from_the_enum_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'drilled' is no member of P"):
        workflow(CUT, DRILL, statuses=P)


def test_statuses_that_no_job_reaches_are_listed_and_are_no_error() -> None:
    declared = workflow(
        CUT, (P.CUT, P.DRILLING, [JobStatus.DONE, P.SCRAP]), statuses=P, final=[P.SCRAP, P.LOST]
    )

    assert declared.unreached == ("lost",)
    assert "%% never reached: lost" in declared.diagram()
    assert workflow(CUT, ("cut", "drilling", "done")).unreached == ()


def test_a_step_that_only_a_retry_leads_to_is_not_reached() -> None:
    declared = workflow(("unclaimed", "claimed", "done"), (P.CUT, P.DRILLING, "done"), statuses=P)

    assert declared.unreached == ("cut", "drilling", "scrap", "lost")


@pytest.mark.parametrize("given", [Enum("E", "A B"), ["cut"], "cut"])
def test_only_a_str_enum_is_an_enum_of_statuses(given: Any) -> None:
    with pytest.raises(ArgumentError, match="takes a str enum"):
        Workflow(Part, given)


# -- steps ------------------------------------------------------------------


def test_a_step_is_still_the_function_that_it_was() -> None:
    declared: Workflow[Any] = Workflow(Part)

    @declared.step("unclaimed", during="claimed", then="done")
    def cut(part: str) -> str:
        """Cut."""
        return part.upper()

    assert (cut("a"), cut.__doc__, cut.name) == ("A", "Cut.", "cut")
    assert (cut.ready, cut.during, cut.then, cut.branches) == ("unclaimed", "claimed", "done", ())
    assert repr(cut) == "<Step cut of Part: unclaimed -> claimed>"
    assert isinstance(cut.queue, JobQueue)


def test_a_step_takes_what_a_queue_takes() -> None:
    declared: Workflow[Any] = Workflow(Part)
    step = declared.step(
        "unclaimed", Part.id > 5, during="claimed", then="done", strategy="skip_locked"
    )(work)

    assert step.queue.plan.strategy == "skip_locked"
    assert len(step.queue.plan.spec.where) == 1


def test_the_arrows_are_every_legal_change() -> None:
    declared = workflow(("unclaimed", "claimed", "away"))
    declared.waiting("away", signals=["done"])

    assert declared.arrows == {
        ("unclaimed", "claimed", "claim"),
        ("claimed", "away", "complete"),
        ("claimed", "unclaimed", "release"),
        ("claimed", "unclaimed", "reap"),
        ("claimed", "failed", "reap"),
        ("claimed", "unclaimed", "fail"),
        ("claimed", "failed", "fail"),
        ("claimed", "cancelled", "cancel_claimed"),
        ("away", "done", "signal"),
        ("unclaimed", "cancelled", "cancel"),
        ("away", "cancelled", "cancel"),
        ("done", "unclaimed", "retry"),
        ("failed", "unclaimed", "retry"),
        ("cancelled", "unclaimed", "retry"),
    }


def test_without_retry_mixin_a_failure_ends_the_job() -> None:
    arrows = workflow(("unclaimed", "claimed", "done"), entity=Plain).arrows

    assert ("claimed", "unclaimed", "fail") not in arrows
    assert ("claimed", "failed", "reap") not in arrows


def test_keywords_of_mermaid_get_other_names_in_the_diagram() -> None:
    declared = workflow(
        ("unclaimed", "claimed", ["1st.try-x", "end"]),
        ("1st.try-x", "drilling", "done"),
        ("end", "packing", "done"),
    )

    assert declared.diagram().splitlines() == [
        "stateDiagram-v2",
        '    state "1st.try-x" as 1st_try_x',
        '    state "end" as end_',
        "    [*] --> unclaimed",
        "    unclaimed --> claimed : work",
        "    claimed --> 1st_try_x",
        "    claimed --> end_",
        "    1st_try_x --> drilling : work",
        "    drilling --> done",
        "    end_ --> packing : work",
        "    packing --> done",
        "    done --> [*]",
    ]


# -- workers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "handler", "said"),
    [
        (JobQueue(Part), None, "has no handler: declare one with @queue.handler"),
        ([JobQueue(Part)], None, "has no handler: declare one with @queue.handler"),
        (workflow(CUT, DRILL, PACK), work, "steps have their own"),
        ([], None, "needs JobQueues, or steps of a workflow"),
        ([work], None, "needs JobQueues, or steps of a workflow"),
        (Part, work, r"for a class, write JobQueue\(Class\)"),
        ([JobQueue(Part)], work, "with one queue that has none"),
    ],
)
def test_a_worker_refuses_what_is_no_queue_and_no_steps(
    engine: Engine, given: Any, handler: Any, said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        Worker(engine, given, handler)


def test_a_step_that_is_awaited_is_for_another_worker(engine: Engine) -> None:
    declared: Workflow[Any] = Workflow(Part)

    @declared.step("unclaimed", during="claimed", then="done")
    async def cut(part: Part) -> None: ...

    with pytest.raises(ArgumentError, match="AsyncWorker"):
        Worker(engine, declared)


def test_claims_are_renewed_in_time_for_the_shortest_lease(engine: Engine) -> None:
    leases = [timedelta(hours=1), timedelta(seconds=3), timedelta(hours=2)]
    lanes: list[Lane[Any]] = [
        Lane(JobQueue(Part, Part.id > number, lease=lease), work)
        for number, lease in enumerate(leases)
    ]

    worker = Worker(engine, lanes)
    heartbeat = worker._heartbeat(Hands(THREADS, threading.Event(), limit=1, slots=1))

    assert heartbeat._every == 1


def asked(rota: Iterable[Any], until: Iterable[Any]) -> list[Any]:
    """Return the lane that served each turn, where the lanes in `until` always have jobs."""
    served = []
    for _ in range(2 * FAIR_EVERY):
        lane = next(lane for lane in rota if lane in until)
        served.append(lane.name)
    return served


class NamedLane(Lane[Any]):
    """A lane with a name, to tell it from others."""

    def __init__(self, name: str) -> None:
        super().__init__(JobQueue(Part), work)
        self.name = name


def lanes_named(names: str) -> list[NamedLane]:
    return [NamedLane(name) for name in names]


def test_later_steps_come_first_but_not_forever() -> None:
    lanes = lanes_named("abc")
    for lane in lanes:
        lane.last_first = True  # as steps are

    everywhere = asked(LaneOrder(lanes), lanes)
    last_is_empty = asked(LaneOrder(lanes), lanes[:2])

    turns = FAIR_EVERY - 1
    assert everywhere == [*"c" * turns, "b", *"c" * turns, "a"]
    assert last_is_empty == [*"b" * turns, "a", *"b" * turns, "a"]


def test_the_first_queues_come_first_but_not_forever() -> None:
    lanes = lanes_named("ab")

    turns = FAIR_EVERY - 1
    assert asked(LaneOrder(lanes), lanes) == [*"a" * turns, "b", *"a" * turns, "b"]


@pytest.mark.parametrize(
    "error",
    [InvalidTransition("a", "b", ["c"]), NotWaiting("Part 7", None, ["away"])],
    ids=["InvalidTransition", "NotWaiting"],
)
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert (str(again), vars(again)) == (str(error), vars(error))
