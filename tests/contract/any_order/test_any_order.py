"""Several sessions call the verbs of one queue in any order: no job is lost or claimed twice."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from sqlalchemy import Engine

from tests.contract.any_order.queue_machine import QueueMachine
from tests.contract.any_order.task_machine import TaskMachine
from tests.contract.any_order.workflow_machine import WorkflowMachine

#: Runs of a machine, and the steps of each: for CI, and for --full.
SIZES = {False: (4, 20), True: (100, 50)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [QueueMachine, WorkflowMachine, TaskMachine])
def test_no_order_of_the_verbs_breaks_the_queue(
    kind: type[RuleBasedStateMachine], engine: Engine, request: pytest.FixtureRequest
) -> None:
    full = request.config.getoption("--full")
    examples, steps = SIZES[full]

    run_state_machine_as_test(
        type("Machine", (kind,), {"engine": engine}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not full,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )
