"""Real extensions of SQLAlchemy, each in the version that `tox -e integrations` installs."""

from __future__ import annotations

from tests.contract.conftest import engine, shared_engine

__all__ = ["engine", "shared_engine"]
