"""Commands and the page take a TaskQueue, and show the call of a job."""

from __future__ import annotations

import html

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue.cli import cli
from sa_jobqueue.web import Access, Visitor, app
from tests.support import log_kept, with_empty_tables

from .models import Base, Task, log_in, send_invoice, tasks

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

TARGET = "tests.contract.tasks.models:tasks"


def command(engine: Engine, *words: str) -> str:
    url = engine.url.render_as_string(hide_password=False)
    with log_kept():
        done = CliRunner(env={"COLUMNS": "200"}).invoke(
            cli, [words[0], TARGET, "--url", url, *words[1:]]
        )
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_work_on_tasks_and_show_their_calls(engine: Engine, session: Session) -> None:
    with_empty_tables(engine, Base.metadata)
    send_invoice.enqueue(session, 7)
    log_in.enqueue(session, "anna", "secret")
    session.commit()

    command(engine, "work", "--drain")

    assert sorted(session.scalars(select(Task.status))) == ["done", "failed"]
    failed = command(engine, "failed")
    assert "log_in('anna', token=…)" in failed
    assert "secret" not in failed
    assert '"job": "log_in(\'anna\', token=\\u2026)"' in command(engine, "failed", "--json")


def test_the_page_shows_the_call_and_hides_what_is_hidden(engine: Engine, session: Session) -> None:
    with_empty_tables(engine, Base.metadata)
    job = log_in.enqueue(session, "anna", "secret")
    session.commit()
    page = TestClient(
        app(engine, {"tasks": tasks}, authorize=lambda _: Visitor("ada", Access.ADMIN))
    )

    listed = html.unescape(page.get("/queues/tasks").text)
    shown = html.unescape(page.get(f"/queues/tasks/jobs/{job.id}").text)

    assert "log_in('anna', token=…)" in listed
    assert "log_in('anna', token=…)" in shown
    assert "secret" not in listed + shown
