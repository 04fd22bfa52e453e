"""The options of ``__queue_args__``, with which a class describes its queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..errors import ArgumentError
from .status import CLAIMED, JobStatus, status_word

DEFAULT_LEASE = timedelta(minutes=10)

#: How often a job is tried where its model does not say.
MAX_ATTEMPTS = 20


@dataclass(frozen=True)
class QueueArgs:
    """The options of ``__queue_args__``, checked.

    Attributes:
        equality: attributes that every claim compares for equality; they lead
            the claim index.
        ready: further statuses that jobs are claimed from; the claim index serves them.
        during: further statuses of claimed jobs, to which the application may move its own; the
            reap index serves them.
        names: the table's own words for the statuses.
        order_by: attributes that replace the claim order, each with an
            optional ``" desc"``; the primary key is always the last.
        lease: how long a claim of an unknown owner is left alone.
        enqueued_at: the attribute that holds the time of the insert.
        keep: whether ``complete()`` keeps the row (True) or deletes it.
        per_key: attributes by whose values claims are limited, each with an index
            that finds the next job of each value; a tuple makes one key of several.
        notify: on PostgreSQL, send a notification with each transaction that makes jobs
            claimable, so that workers of other processes start at once.
        failed_index: an index of failed and cancelled jobs, by which they are counted and
            listed; see ``sa_jobqueue.counts``.
        max_attempts: how often a job of RetryMixin is tried where it does not say; None: until
            it succeeds.
    """

    equality: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    during: tuple[str, ...] = ()
    names: Mapping[JobStatus, str] = field(default_factory=dict)
    order_by: tuple[str, ...] | None = None
    lease: timedelta = DEFAULT_LEASE
    enqueued_at: str | None = None
    keep: bool = True
    per_key: tuple[tuple[str, ...], ...] = ()
    notify: bool = False
    failed_index: bool = False
    max_attempts: int | None = MAX_ATTEMPTS

    @classmethod
    def of(cls, entity: type) -> QueueArgs:
        """Read the options of a class.

        Raises:
            ArgumentError: an unknown option, or a value that cannot work.
        """
        given = dict(getattr(entity, "__queue_args__", {}))
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            raise ArgumentError(
                f"{entity.__name__}.__queue_args__ has no option {', '.join(map(repr, unknown))}; "
                f"the options are {', '.join(cls.__dataclass_fields__)}"
            )
        for key in ("equality", "ready", "during", "order_by"):
            if key in given:
                given[key] = _words(entity, key, given[key])
        if "per_key" in given:
            given["per_key"] = _keys(entity, given["per_key"])
        _check_types(entity, given)
        for key in ("ready", "during"):
            given[key] = tuple(status_word(word) for word in given.get(key, ()))
        given["names"] = _status_names(entity, given.get("names", {}))
        args = cls(**given)
        _check_apart(entity, args)
        return args

    def word(self, status: JobStatus) -> str:
        """Return the table's word for a status."""
        return self.names.get(status, status.value)

    @property
    def words(self) -> tuple[str, ...]:
        """All words that the class names, and ours for the other statuses."""
        return (*map(self.word, JobStatus), *self.ready, *self.during)


def _check_types(entity: type, given: Mapping[str, Any]) -> None:
    kinds = {
        "lease": timedelta,
        "keep": bool,
        "enqueued_at": str,
        "names": Mapping,
        "notify": bool,
        "failed_index": bool,
    }
    for key, kind in kinds.items():
        if key in given and not isinstance(given[key], kind):
            raise ArgumentError(
                f"{entity.__name__}.__queue_args__[{key!r}] is a {kind.__name__}: {given[key]!r}"
            )
    most = given.get("max_attempts")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__['max_attempts'] is a number, 1 or more, or None for "
            f"no limit: {most!r}"
        )


def _words(entity: type, key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    words = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(word, str) for word in words):
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__[{key!r}] takes names, as strings: {value!r}"
        )
    return words


def _keys(entity: type, value: Any) -> tuple[tuple[str, ...], ...]:
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return tuple(_words(entity, "per_key", key) for key in (value if several else (value,)))


def _status_names(entity: type, names: Mapping[Any, str]) -> dict[JobStatus, str]:
    try:
        named = {JobStatus(status): status_word(word) for status, word in names.items()}
    except ValueError as error:
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__['names']: {error}; "
            f"the statuses are {', '.join(JobStatus)}"
        ) from error
    words = [named.get(status, status.value) for status in JobStatus]
    if len(set(words)) < len(words):
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__['names'] uses one word for two statuses: {words}"
        )
    return named


def _check_apart(entity: type, args: QueueArgs) -> None:
    """Refuse a status that is both in `ready` and in `during`."""
    ready = {args.word(JobStatus.UNCLAIMED), *args.ready}
    both = sorted(ready & {args.word(CLAIMED), *args.during})
    if both:
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__: a job in {both[0]!r} cannot both wait for a claim "
            "and be claimed; name it in 'ready' or in 'during'"
        )
