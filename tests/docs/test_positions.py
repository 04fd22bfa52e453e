"""The code of docs/positions.md, run on every database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, stats
from tests.support import make_engine

from .markdown import code_blocks, page

PAGE = page("docs/positions.md")


def test_a_job_shows_its_place_and_its_time_as_on_the_page(db_url: URL) -> None:
    page: dict[str, Any] = {"__name__": "page"}
    for block in code_blocks(PAGE, "python"):
        exec(compile(block, "positions.py", "exec", dont_inherit=True), page)
    render, shown, hurry = page["Render"], page["shown"], page["hurry"]
    engine = make_engine(db_url)
    page["Base"].metadata.create_all(engine)

    try:
        with Session(engine) as session:
            session.add_all([render() for _ in range(33)])
            session.commit()
            claimed = claim(session, render, owner="w", limit=31)
            waiting = sorted(session.query(render).filter_by(status="unclaimed"), key=_id)
            assert [shown(session, job) for job in waiting] == ["1 in line", "2 in line"]

            complete(session, claimed[:30])
            session.commit()

            assert stats(session, render).rate == 0.1
            assert shown(session, waiting[1]) == "2 in line, about 0:00:20"
            assert shown(session, claimed[30]) == "claimed"
            assert hurry(session, [claimed[30], waiting[1], waiting[0]]) == (
                "2 of 3 hurried; places now: [None, 2, 1]"
            )
    finally:
        page["Base"].metadata.drop_all(engine)
        engine.dispose()


def _id(job: Any) -> int:
    return int(job.id)
