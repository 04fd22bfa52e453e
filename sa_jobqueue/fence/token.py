"""What a claim knows its rows by: the token of the claim, and the fence of each job.

A fence is the primary key of one job and the token that it shares with the other jobs of
its claim: the status, the owner and the owner_date that the claim wrote. Every later
write names all four, so it reaches the row only while the row is still ours.

A claim that wrote nothing has a hold instead: what keeps its rows from others.

Times tell the claims of one owner apart, also those that were rolled back. Two statements of one
owner may begin in the same microsecond, one of them waiting for a row of the other: once the other
is rolled back, which leaves no trace in the database, the waiting claim would get the row with the
same time, and so the same fence. So this process remembers the times that it has written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection

from ..errors import ArgumentError
from ..model.transitions import ClaimedValues

#: The values of a primary key.
Identity = tuple[Any, ...]

#: What a fence compares: the status that the claim wrote, or left; whether the claim wrote nothing,
#: so that its locks are the fence; whether it has had more than one date; and whether one key of
#: one column stands in the place of a list: it saves an eighth of SQLite's instructions.
FenceKind = tuple[str, bool, bool, bool]

#: What limits serial keys of a claim that another process has made.
ELSEWHERE = "elsewhere"


class Fence(NamedTuple):
    """One claimed job, to be finished without its entity.

    Attributes:
        entity: the mapped class.
        identity: the primary key's values.
        token: shared with the other jobs of the same claim.
    """

    entity: type[Any]
    identity: Identity
    token: Token

    @property
    def owner(self) -> str | None:
        """The owner, as the claim wrote it."""
        return self.token.owner

    @property
    def owner_date(self) -> datetime | None:
        """The time of the claim, or of its last renewal through this fence."""
        return self.token.dates[-1] if self.token.dates else None


@dataclass(eq=False)
class Token:
    """What all jobs of one claim have in common.

    Attributes:
        status: the status that the claim wrote, or left where it wrote nothing.
        owner: as the claim wrote it; None in an unmarked claim without an owner.
        dates: every owner_date that the claim has had. A renewal adds its date
            before it writes it, so that the handler's own finish is accepted
            while a heartbeat in another session is in flight, committed or
            rolled back.
        hold: what keeps the rows of an unmarked claim.
        limited_by: what limits the claimed jobs of a serial key, and so claims the next ones when
            this claim ends; None: nothing does.
    """

    status: str
    owner: str | None
    dates: list[datetime] = field(default_factory=list)
    hold: Hold | None = None
    limited_by: object | None = None

    def kind(self, *, single: bool = False) -> FenceKind:
        """Return what its fence compares."""
        return self.status, self.hold is not None, len(self.dates) > 1, single

    def __reduce__(self) -> tuple[Any, ...]:
        if self.hold is not None:
            raise ArgumentError(
                "a claim by the strategies held and advisory belongs to its connection, and "
                "another process cannot finish it: finish it here"
            )
        elsewhere = None if self.limited_by is None else ELSEWHERE
        return Token, (self.status, self.owner, self.dates, None, elsewhere)


class LetGo(Enum):
    """When a write frees the rows of an unmarked claim."""

    AT_COMMIT = auto()
    AT_END = auto()  # of the transaction, however it ends
    NOW = auto()
    NEVER = auto()


class Hold(ABC):
    """What keeps the rows of a claim that wrote nothing: locks of its connection.

    Attributes:
        rounds: the round that each row was claimed in, where the hold does not keep a
            new round from taking it.
    """

    rounds: Mapping[Identity, int] = MappingProxyType({})

    @abstractmethod
    def still_held(self, connection: Connection, identities: Sequence[Identity]) -> list[Identity]:
        """Return those of the rows that this hold still keeps.

        Raises:
            NotClaimed: not on this connection, or not in this transaction.
        """

    @abstractmethod
    def let_go(self, connection: Connection, identities: Sequence[Identity], when: LetGo) -> None:
        """Free the rows, once their change was written."""


@dataclass(slots=True)
class Change:
    """What a verb writes to the rows of a claim, all of one class; nobody changes it.

    Attributes:
        verb: its name, for messages.
        values: returns the new values (no values leave the rows as they are); None
            deletes the rows.
        word: the status that it leads to, in the table's own word.
        parameters: the values of further parameters of the statement.
        let_go: when the write frees the rows of an unmarked claim.
        frees: whether it may leave jobs that can be claimed.
        own: the application's own columns that are written, too; their values are parameters.
        each: what they become in each row, if that differs.
        cases: for so many rows, at least, the statement can write values that differ.
    """

    verb: str
    values: ClaimedValues | None
    word: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    let_go: LetGo = LetGo.AT_COMMIT
    frees: bool = False
    own: tuple[Column[Any], ...] = ()
    each: Mapping[Identity, Sequence[Any]] = field(default_factory=dict)
    cases: int = 0


#: How many times are remembered: those of the claims that may still be under way.
MOST = 4_096

_MICROSECOND = timedelta(microseconds=1)

_had: dict[tuple[str | None, datetime], object] = {}


def distinct(owner: str | None, date: datetime) -> datetime:
    """Return this time, or the next one that no claim or renewal of the owner has had.

    Args:
        owner: the name that claims; threads of a process may share it.
        date: the database's time, with microseconds.
    """
    ours = object()
    while _had.setdefault((owner, date), ours) is not ours:
        date += _MICROSECOND
    if len(_had) > MOST:
        with suppress(RuntimeError):  # another thread has changed it meanwhile
            _had.pop(next(iter(_had)), None)
    return date
