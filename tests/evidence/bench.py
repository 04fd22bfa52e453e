"""What a driver of the tests works with: sessions, a ledger, and short ways to use the verbs."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.evidence.checker import Fault, check_files
from tests.evidence.ledger import Ledger

ALL = timedelta(0)


@dataclass
class Bench:
    """A database with empty tables, and the ledger of what is done to them."""

    engine: Engine
    path: Path
    opened: list[Session] = field(default_factory=list)

    def session(self) -> Session:
        """Open a session that is closed at the end."""
        self.opened.append(Session(self.engine, expire_on_commit=False))
        return self.opened[-1]

    @contextmanager
    def recording(self, *classes: type[Any]) -> Any:
        """Record what is done to the jobs of classes."""
        with Ledger(self.path).listen(*classes), ExitStack() as stack:
            stack.callback(self.close)
            yield

    def close(self) -> None:
        """Close the sessions."""
        for session in self.opened:
            session.close()

    def faults(self, *, drained: bool = False) -> list[Fault]:
        """Judge what was recorded; the clocks of one machine agree."""
        return check_files(self.path, drained=drained, skew=ALL)

    def add(self, *entities: Any) -> None:
        """Commit new jobs, in this order."""
        with self.session() as session:
            for entity in entities:
                session.add(entity)
                session.flush()
            session.commit()
