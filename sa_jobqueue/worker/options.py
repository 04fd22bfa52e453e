"""The keyword arguments that Worker and AsyncWorker have in common, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypedDict

from ..owners.owner import Owner
from ..verbs.backoff import Backoff


class WorkerOptions(TypedDict, total=False):
    """Names and types; :class:`Worker` tells what they mean, and has the defaults."""

    owner: str | int | Owner | None
    concurrency: int
    limit: int | None
    delete: bool | None
    drain: bool
    interval: timedelta
    poll: timedelta
    grace: timedelta
    backoff: Backoff | None
    max_runtime: timedelta | None
    reap_every: timedelta | None
    options: Sequence[Any]
