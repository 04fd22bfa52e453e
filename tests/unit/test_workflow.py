"""The graph of a workflow: what it refuses, lists and draws; no database is asked."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, RetryMixin
from sa_jobqueue.worker import Worker
from sa_jobqueue.workflow import Workflow
from tests.models import Email


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
        ([CUT, DRILL, PACK, ("cut", "packing", "done")], "'cut' cannot be the status both"),
        (
            [CUT, DRILL, ("drilled", "drilling", "done")],
            "'drilling' cannot be the status both of jobs claimed by work",
        ),
        ([("unclaimed", "cut", "done")], "do not serve every step"),
        (
            [CUT, ("cut", "drilling", "done"), ("done", "packing", "failed")],
            "both of jobs ready for work",
        ),
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
        lambda: declared.signal(None, 1, "cut"),  # type: ignore[arg-type]
        lambda: declared.retry(None, []),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match="'nowhere'"):
            use()


@pytest.fixture
def engine() -> Engine:
    return create_engine("sqlite://")


def test_a_step_that_the_indexes_do_not_serve_says_what_to_write() -> None:
    declared = workflow(CUT, DRILL, PACK, entity=Email)

    with pytest.raises(ArgumentError) as raised:
        _ = declared.steps

    assert "'ready': ['cut', 'drilled'], 'during': ['drilling', 'packing']" in str(raised.value)
    assert "Email.__queue_args__" in str(raised.value)


def test_signals_and_enums_that_lead_nowhere_are_refused() -> None:
    declared = workflow(("unclaimed", "claimed", "away"))
    declared.waiting("away", signals="back")

    with pytest.raises(ArgumentError, match="name all signals of a status in one declaration"):
        declared.waiting("away", signals="gone")
    with pytest.raises(ArgumentError, match="a signal in 'away' leads to 'back'"):
        _ = declared.steps
    with pytest.raises(ArgumentError, match="'drilled' is no member of P"):
        workflow(CUT, DRILL, statuses=P)
    for given in (Enum("E", "A B"), ["cut"], "cut"):
        with pytest.raises(ArgumentError, match="takes a str enum"):
            Workflow(Part, given)  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize(
    ("declare", "taken"),
    [
        (lambda declared: declared.waiting("cut", signals="done"), "cut"),
        (lambda declared: declared.step("end", during="packing", then="done")(work), "packing"),
    ],
)
def test_later_declarations_are_checked_too(declare: Any, taken: str) -> None:
    declared = workflow(CUT, DRILL, PACK)
    assert declared.steps

    declare(declared)

    with pytest.raises(ArgumentError, match=f"'{taken}' cannot be the status both"):
        _ = declared.steps


# -- an enum of the user's --------------------------------------------------


class P(StrEnum):
    """An enum with more members than the steps use."""

    CUT = "cut"
    DRILLING = "drilling"
    SCRAP = "scrap"
    LOST = "lost"


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
