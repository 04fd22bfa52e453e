"""A bench on empty tables, whose history is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine

from tests.contract.serial.keyed import KeyedBase
from tests.evidence.bench import Bench
from tests.models import Base
from tests.support import make_engine, with_empty_tables


@pytest.fixture(scope="module")
def kept_engine(db_url: URL, db_alias: str) -> Iterator[Engine]:
    options: dict[str, Any] = {} if db_alias == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = make_engine(db_url, **options)
    yield engine
    engine.dispose()


@pytest.fixture
def bench(kept_engine: Engine, tmp_path: Path) -> Bench:
    """A bench on empty tables."""
    for base in (Base, KeyedBase):
        with_empty_tables(kept_engine, base.metadata)
    return Bench(kept_engine, tmp_path / "history.jsonl")
