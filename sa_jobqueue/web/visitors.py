"""Who looks at the page, and what they may do: the application says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from starlette.requests import Request


class Access(Enum):
    """What a visitor may do."""

    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True)
class Visitor:
    """Somebody who may see the page.

    Attributes:
        name: stands in the log beside all that the visitor changes.
        access: READ sees everything; ADMIN may also change jobs, queues and schedules.
    """

    name: str
    access: Access

    @property
    def may_change(self) -> bool:
        """Whether the visitor may change anything."""
        return self.access is Access.ADMIN


#: Says who asks; None: nobody whom the page is for. A plain function runs in a thread.
Authorize: TypeAlias = Callable[[Request], Visitor | Awaitable[Visitor | None] | None]
