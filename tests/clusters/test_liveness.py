"""What a node says of an owner is judged; no cluster is started for it."""

from __future__ import annotations

from tests.clusters.liveness import Known


def test_a_living_owner_may_be_alive_or_unknown() -> None:
    assert Known("its own node", "alive", "dead", reaped=0).fault is None
    assert Known("another node", "unknown", "unknown", reaped=0).fault is None


def test_a_living_owner_that_is_dead_to_a_node_is_a_fault() -> None:
    assert Known("another node", "dead", "dead", reaped=0).fault is not None


def test_a_living_owner_that_loses_its_claim_before_its_lease_is_over_is_a_fault() -> None:
    assert Known("another node", "unknown", "unknown", reaped=1).fault is not None
