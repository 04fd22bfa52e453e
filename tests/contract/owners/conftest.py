"""An owner, and databases that look like a cluster or stand behind a pooler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_jobqueue import Owner
from sa_jobqueue.dialects import database_of


@pytest.fixture
def owner(engine: Engine) -> Iterator[Owner]:
    with Owner(engine) as owner:
        yield owner


@pytest.fixture
def behind_pooler(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the connections look as if a pooler stood between them and the server."""
    with engine.connect() as connection:
        kind = type(database_of(connection))
    monkeypatch.setattr(kind, "through_pooler", lambda *_: True)
