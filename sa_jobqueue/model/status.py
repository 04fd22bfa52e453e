"""What a job can be, and how statuses stand in SQL.

Which verb changes which status, and to what, is in ``transitions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Any, cast

from sqlalchemy import Cast, ColumnElement, String, literal_column, select, type_coerce
from sqlalchemy import Enum as EnumType
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from ..errors import ArgumentError

#: The length of our own status column, unless a word of the queue is longer.
STATUS_LENGTH = 16

#: The most characters of a word.
LONGEST_WORD = 64


class JobStatus(StrEnum):
    """The five statuses; a member is its plain string."""

    UNCLAIMED = "unclaimed"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNCLAIMED, CLAIMED, DONE, FAILED, CANCELLED = JobStatus

# Statuses stand in the SQL as literals, because no planner proves from a parameter that a
# partial index serves. So a word must need no escaping on any database.
_WORD = re.compile(r"[\w][\w .:-]*", re.ASCII)


def status_word(word: str) -> str:
    """Return `word` as a plain string, checked to be usable as a status.

    Raises:
        ArgumentError: longer than 64 characters, or with characters other
            than letters, digits, underscore, space, dot, colon and hyphen.
    """
    plain = str(word.value) if isinstance(word, Enum) else word
    if not isinstance(plain, str) or len(plain) > LONGEST_WORD or not _WORD.fullmatch(plain):
        raise ArgumentError(
            f"{word!r} cannot be a status: use at most {LONGEST_WORD} letters, digits, "
            "underscores, spaces, dots, colons or hyphens"
        )
    return plain


def word_literal(word: str, type_: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
    """Return a status word as an SQL literal.

    Args:
        type_: of the column that the word is written to, or read as; a comparison needs none.
    """
    literal: ColumnElement[Any] = literal_column(f"'{status_word(word)}'", type_)
    return as_enum(literal, type_) if type_ is not None and _is_native(type_) else literal


class as_enum(Cast[Any]):  # noqa: N801 - reads as the SQL function that it is
    """A literal word, cast to its enum where the database has enums as types of their own.

    PostgreSQL takes the words of a CASE for text, and refuses them.
    """

    inherit_cache = True


@compiles(as_enum)
def _word(element: as_enum, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clause, **kw))


@compiles(as_enum, "postgresql")
def _cast_word(element: as_enum, compiler: Any, **kw: Any) -> str:
    return str(compiler.visit_cast(element, **kw))


def status_again(status: Any, word: str) -> ColumnElement[bool]:
    """Compare a status with a word so that PostgreSQL does not know it for an index's condition.

    A LIKE without a wildcard is a comparison for equality to an index. An enum has no LIKE; there
    the word comes from a subquery.
    """
    if _is_native(status.type):
        word_ = select(word_literal(word, status.type)).scalar_subquery()
        return cast("ColumnElement[bool]", status == word_)
    pattern = status_word(word).replace("_", "\\_")
    return cast("ColumnElement[bool]", status.like(literal_column(f"'{pattern}'")))


def as_word(status: Any) -> ColumnElement[str]:
    """Read a status as the table's own word, also where its type is an Enum of Python's."""
    return type_coerce(status, String())


def _is_native(type_: TypeEngine[Any]) -> bool:
    return isinstance(type_, EnumType) and bool(type_.native_enum)


def status_is(status: Any, *words: str) -> ColumnElement[bool]:
    """Compare a status column with literal words, so that partial indexes serve."""
    literals = [word_literal(word) for word in words]
    one = len(literals) == 1
    return cast("ColumnElement[bool]", status == literals[0] if one else status.in_(literals))


def status_is_not(status: Any, *words: str) -> ColumnElement[bool]:
    """Compare a status column with literal words that it may not have."""
    return cast("ColumnElement[bool]", status.not_in([word_literal(word) for word in words]))


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
        names: the table's words for the statuses.
        order_by: attributes that replace the claim order, each with an
            optional ``" desc"``; the primary key is always the last.
        lease: how long a claim of an unknown owner is left alone.
        enqueued_at: the attribute that holds the time of the insert.
        keep: whether ``complete()`` keeps the row (True) or deletes it.
        keep_for: after how long a worker deletes rows that are done or cancelled; None: never.
        per_key: attributes by whose values claims are limited, each with an index
            that finds the next job of each value; a tuple makes one key of several.
        notify: on PostgreSQL, send a notification with each transaction that makes jobs
            claimable, so that workers of other processes start at once.
        failed_index: an index of failed and cancelled jobs, by which they are counted and
            listed; see ``sa_jobqueue.counts``.
        max_attempts: how often a job of RetryMixin is tried where it does not say; None: until
            it succeeds.
        waiting: the status of jobs that wait for a group; see ``sa_jobqueue.groups``.
        web_columns: attributes that lists of jobs show beside the key; None: the first two short
            texts.
    """

    equality: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    during: tuple[str, ...] = ()
    names: Mapping[JobStatus, str] = field(default_factory=dict)
    order_by: tuple[str, ...] | None = None
    lease: timedelta = DEFAULT_LEASE
    enqueued_at: str | None = None
    keep: bool = True
    keep_for: timedelta | None = None
    per_key: tuple[tuple[str, ...], ...] = ()
    notify: bool = False
    failed_index: bool = False
    max_attempts: int | None = MAX_ATTEMPTS
    waiting: str | None = None
    web_columns: tuple[str, ...] | None = None

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
        _check_types(entity, given)
        for key in ("equality", "ready", "during", "order_by", "web_columns"):
            if key in given:
                given[key] = _words(entity, key, given[key])
        keys = given.get("per_key", ())
        several = isinstance(keys, Iterable) and not isinstance(keys, str)
        keys = keys if several else [keys]
        given["per_key"] = tuple(_words(entity, "per_key", key) for key in keys)
        for key in ("ready", "during"):
            given[key] = tuple(map(status_word, given.get(key, ())))
        given["names"] = _status_names(entity, given.get("names", {}))
        waiting = given.setdefault("waiting", getattr(entity, "__queue_waiting__", None))
        args = cls(**given)
        if waiting is not None and args.words.count(status_word(waiting)) > 1:
            raise ArgumentError(
                f"{entity.__name__}.__queue_args__['waiting']: {waiting!r} is the word for another "
                "status already"
            )
        both = {args.word(UNCLAIMED), *args.ready} & {args.word(CLAIMED), *args.during}
        if both:
            raise ArgumentError(
                f"{entity.__name__}.__queue_args__: a job in {min(both)!r} cannot both wait for a "
                "claim and be claimed; name it in 'ready' or in 'during'"
            )
        return args

    def word(self, status: JobStatus) -> str:
        """Return the table's word for a status."""
        return self.names[status]

    @property
    def words(self) -> tuple[str, ...]:
        """All words that the class names, and ours for the other statuses."""
        waiting = [] if self.waiting is None else [self.waiting]
        return (*map(self.word, JobStatus), *self.ready, *self.during, *waiting)


#: The longest age that prune() takes.
_LONGEST = timedelta(days=36_500)

#: What an option takes, where it takes one type.
_TYPES = {
    **dict.fromkeys(("lease", "keep_for"), timedelta),
    "enqueued_at": str,
    "names": Mapping,
    **dict.fromkeys(("keep", "notify", "failed_index"), bool),
}


def _check_types(entity: type, given: Mapping[str, Any]) -> None:
    for key, kind in _TYPES.items():
        if given.get(key) is not None and not isinstance(given[key], kind):
            raise ArgumentError(
                f"{entity.__name__}.__queue_args__[{key!r}] is a {kind.__name__}: {given[key]!r}"
            )
    kept = given.get("keep_for")
    if kept is not None and not timedelta(0) <= kept <= _LONGEST:
        wrong = "negative" if kept < timedelta(0) else "longer than a hundred years"
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__['keep_for'] is {wrong}: {kept}. None keeps rows for "
            "ever"
        )
    most = given.get("max_attempts")
    if most is not None and (type(most) is not int or most < 1):
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


def _status_names(entity: type, names: Mapping[Any, str]) -> dict[JobStatus, str]:
    try:
        named = {JobStatus(status): status_word(word) for status, word in names.items()}
    except ValueError as error:
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__['names']: {error}; "
            f"the statuses are {', '.join(JobStatus)}"
        ) from error
    named = {status: named.get(status, status.value) for status in JobStatus}
    if len(set(named.values())) < len(named):
        raise ArgumentError(
            f"{entity.__name__}.__queue_args__['names'] uses one word for two statuses: "
            f"{[*named.values()]}"
        )
    return named
