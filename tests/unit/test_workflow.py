"""The graph of a workflow: what it refuses, lists and draws; no database is asked."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any

import pytest
from sqlalchemy import create_engine
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


def test_every_first_use_checks_the_graph() -> None:
    declared = workflow(CUT, DRILL)
    step = declared.step("drilled", during="packing", then="nowhere")(work)

    for use in (
        lambda: worker(declared),
        lambda: worker(step),
        lambda: step.queue,
        declared.diagram,
        lambda: declared.arrows,
        lambda: declared.signal(None, 1, "cut"),  # type: ignore[arg-type]
        lambda: declared.retry(None, []),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match="'nowhere'"):
            use()


# -- an enum of the user's --------------------------------------------------


class P(StrEnum):
    """An enum with more members than the steps use."""

    CUT = "cut"
    DRILLING = "drilling"
    SCRAP = "scrap"
    LOST = "lost"


def away(signal: str) -> Workflow[Any]:
    """Declare a step after which a job waits for a signal."""
    declared = workflow(("unclaimed", "claimed", "away"))
    declared.waiting("away", signals=signal)
    return declared


def later(declare: Callable[[Workflow[Any]], object]) -> Workflow[Any]:
    """Declare more after the first use."""
    declared = workflow(CUT, DRILL, PACK)
    assert declared.steps
    declare(declared)
    return declared


def worker(given: Any, handler: Any = None) -> Any:
    return Worker(create_engine("sqlite://"), given, handler)


END = {"during": "packing", "then": "done"}
NEEDS, NO_ENUM = "needs JobQueues, or steps of a workflow", "takes a str enum"
NOT_SERVED = (
    r"'ready': \['cut', 'drilled'\], 'during': \['drilling', 'packing'\] in Email.__queue_args__"
)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: workflow(CUT, DRILL, PACK, entity=Email).steps, NOT_SERVED),
        (lambda: away("back").waiting("away", signals="gone"), "all signals of a status in one"),
        (lambda: away("back").steps, "a signal in 'away' leads to 'back'"),
        (lambda: workflow(CUT, DRILL, statuses=P), "'drilled' is no member of P"),
        *((lambda it=it: Workflow(Part, it), NO_ENUM) for it in (Enum("E", "A B"), ["cut"], "cut")),
        (lambda: later(lambda it: it.waiting("cut", signals="done")).steps, "'cut' cannot be the"),
        (lambda: later(lambda it: it.step("end", **END)(work)).steps, "'packing' cannot be the st"),
        (lambda: worker(JobQueue(Part)), "has no handler: declare one with @queue.handler"),
        (lambda: worker(workflow(CUT, DRILL, PACK), work), "steps have their own"),
        (lambda: worker([]), NEEDS),
        (lambda: worker([work]), NEEDS),
        (lambda: worker(Part), r"for a class, write JobQueue\(Class\)"),
        (lambda: worker([JobQueue(Part)], work), "with one queue that has none"),
    ],
)
def test_what_leads_nowhere_or_is_no_work_is_refused(
    refused: Callable[[], object], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        refused()


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
