"""A session of several databases is refused: a claim is of one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import StaticPool, create_engine
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, claim, complete
from tests.models import Base, Email, add_emails


def test_a_sharded_session_is_refused_and_a_session_of_one_shard_serves() -> None:
    engines = [create_engine("sqlite://", poolclass=StaticPool) for _ in range(2)]
    for engine in engines:
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            add_emails(session, "a", "b", "c")
            session.commit()
    shards: Any = dict(zip("xy", engines, strict=True))
    sharded = ShardedSession(
        shards=shards,
        shard_chooser=lambda *_, **__: "x",
        identity_chooser=lambda *_, **__: list(shards),
        execute_chooser=lambda _: list(shards),
    )

    with sharded, pytest.raises(ArgumentError, match="Session of one shard"):
        claim(sharded, Email, owner="w", limit=2)

    with Session(engines[0]) as session:
        jobs = claim(session, Email, owner="w", limit=2)
        assert len(jobs) == 2
        complete(session, jobs)
    with sharded, pytest.raises(ArgumentError, match="Session of one shard"):
        complete(sharded, jobs.fences)
