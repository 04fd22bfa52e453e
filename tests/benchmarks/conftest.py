"""Benchmarks at their smallest."""

from __future__ import annotations

import pytest

from benchmarks.harness import processes

from .forked import ForkedHost


@pytest.fixture
def forked_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes of adapters begin quickly; other tests start them as a user does."""
    monkeypatch.setattr(processes, "Host", ForkedHost)
