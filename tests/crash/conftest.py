"""A database of its own for each test."""

from __future__ import annotations

from tests.contract.conftest import own_engine as engine

__all__ = ["engine"]
