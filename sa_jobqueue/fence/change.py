"""What a verb writes to the rows of a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column

from ..model.transitions import ClaimedValues
from .token import LetGo


@dataclass(frozen=True)
class Change:
    """What a verb writes to the rows of a claim.

    Attributes:
        verb: its name, for messages.
        values: returns the new values (no values leave the rows as they are); None
            deletes the rows.
        parameters: the values of further parameters of the statement.
        own: the application's own columns that are written, too; their values are parameters.
        let_go: when the write frees the rows of an unmarked claim.
        frees: whether it may leave jobs that can be claimed.
    """

    verb: str
    values: ClaimedValues | None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    let_go: LetGo = LetGo.AT_COMMIT
    frees: bool = False
    own: tuple[Column[Any], ...] = ()
