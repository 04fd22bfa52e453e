"""How far groups are: on the pages of jobs, and in a line of ``status``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from sa_jobqueue import claim, complete, fail
from sa_jobqueue.cli import cli
from sa_jobqueue.groups import after
from sa_jobqueue.web import Access, Visitor, app
from tests.support import with_empty_tables

from .models import Base, Part, Report


def test_the_pages_of_a_member_and_of_what_waits_tell_how_far_the_group_is(
    engine: Engine, session: Session
) -> None:
    with_empty_tables(engine, Base.metadata)
    report = Report()
    group = after(session, [Part(max_attempts=1) for _ in range(4)], report)
    done, failed = claim(session, Part, owner="w", limit=2)
    complete(session, done)
    fail(session, failed, error="no ink")
    session.commit()
    page = TestClient(
        app(
            engine,
            {"parts": Part, "reports": Report},
            authorize=lambda _: Visitor("a", Access.READ),
        )
    )

    member = page.get(f"/queues/parts/jobs/{done.id}").text
    waiting = page.get(f"/queues/reports/jobs/{report.id}").text

    assert f"<dt>Member of group {group.id}</dt>" in member
    assert f"<dt>Waits for group {group.id}</dt>" in waiting
    for shown in (member, waiting):
        assert "1 of 4 done" in shown
        assert "1 failed or cancelled" in shown
        assert '<progress max="4" value="1"' in shown


def test_status_has_a_line_of_the_groups_that_jobs_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'groups.db'}"
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    target = f"{Part.__module__}:Part"
    before = CliRunner().invoke(cli, ["status", target, "--url", url]).output
    with Session(engine) as session, session.begin():
        after(session, [Part(), Part()], Report())
        after(session, [Part()], Report())
        complete(session, claim(session, Part, owner="w"))

    shown = CliRunner().invoke(cli, ["status", target, "--url", url]).output
    engine.dispose()

    assert "jobs wait for" not in before
    assert "jobs wait for 2 groups: 1 of 3 members are done" in shown
