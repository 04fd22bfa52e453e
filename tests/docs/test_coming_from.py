"""The code of docs/coming-from.md runs from top to bottom."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue.worker import Worker

from .markdown import code_blocks, page


def follow_the_page() -> dict[str, Any]:
    code = "\n".join(code_blocks(page("docs/coming-from.md"), "python"))
    names: dict[str, Any] = {"__name__": "coming_from"}
    exec(compile(code, "coming-from.md", "exec", dont_inherit=True), names)
    return names


def test_the_code_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    follow_the_page()

    # Bert's email is not due yet.
    assert capsys.readouterr().out.splitlines() == [
        "to anna@example.org",
        "to carla@example.org",
        "to dora@example.org",
        "5",
    ]


def test_a_task_that_an_old_worker_does_not_know_keeps_its_attempts() -> None:
    names = follow_the_page()
    task, engine = names["Task"], names["engine"]
    with Session(engine) as session:
        session.add(task(name="multiply", arguments={"x": 2, "y": 3}))
        session.commit()

        Worker(engine, names["tasks"], drain=True).run()

        new = select(task.status, task.attempts).where(task.name == "multiply")
        assert session.execute(new).one() == ("unclaimed", 0)
