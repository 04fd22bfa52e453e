"""An owner that is open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from sa_jobqueue import Owner


@pytest.fixture
def owner(engine: Engine) -> Iterator[Owner]:
    with Owner(engine) as owner:
        yield owner
