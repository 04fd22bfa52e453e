"""What becomes of claims: taken away by others, and the statuses afterwards."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tests.models import Email


def statuses(session: Session) -> list[tuple[str, str, str | None]]:
    found = session.execute(select(Email.recipient, Email.status, Email.owner).order_by(Email.id))
    return [(row.recipient, row.status, row.owner) for row in found]
