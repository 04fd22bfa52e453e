"""The claims whose SQL stands in claims.sql: shapes of queues, on each database, by each strategy.

``python -m tests.unit.sql`` writes the file again; read the difference before you commit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Column, DateTime, Integer, String, Table, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler

from sa_jobqueue import JobMixin, JobQueue, RoundMixin, claim_statements
from tests.models import Dog, Email, Message, Pair, Task
from tests.support import SERVERS, STRATEGIES
from tests.unit.mapping import dialect

FILE = Path(__file__).with_name("claims.sql")


class Base(DeclarativeBase):
    pass


class Visit(JobMixin, RoundMixin, Base):
    __tablename__ = "visit"
    __queue_args__ = {"equality": ["region"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[str] = mapped_column(String(10))


class Guest(Base):
    """A class without the mixin."""

    __tablename__ = "guest"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    seats: Mapped[int]


class Ticket(JobMixin, Base):
    """A table without a primary key of its own."""

    __table__ = Table(
        "ticket",
        Base.metadata,
        Column("number", Integer, unique=True, nullable=False),
        Column("status", String(16)),
        Column("owner", String(64)),
        Column("owner_date", DateTime(timezone=True)),
    )
    __mapper_args__ = {"primary_key": [__table__.c.number]}  # noqa: RUF012 - SQLAlchemy's way


#: The queues whose claims are written down, and the criteria of each claim.
SHAPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a plain queue": (Email, ()),
    "a predicate": (Email, (Email.recipient.like("a%"),)),
    "priorities and times": (Task, ()),
    "two columns of the key": (Pair, ()),
    "own words and order": (Message, ()),
    "a joined class": (Dog, ()),
    "a region and a round": (Visit, (Visit.region == "eu", Visit.round == 3)),
    "all rounds of a region": (Visit, (Visit.region == "eu",)),
    "a region that is no constant": (Visit, (Visit.region == func.user(), Visit.round == 3)),
    "no primary key": (Ticket, ()),
    "a queue with an order": (
        JobQueue(Email, Email.recipient == "a", order_by=Email.recipient),
        (),
    ),
    "strict order": (JobQueue(Email, strict_order=True), ()),
}

#: Shapes that only held and advisory claims have: any mapped class.
ANY_CLASS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "any class": (Guest, (Guest.seats > 1,)),
    "any class in order": (
        JobQueue(Guest, order_by=Guest.seats.desc(), strategy="advisory"),
        (),
    ),
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Yield shape, database and strategy of each claim in the file."""
    for shape, (target, _) in SHAPES.items():
        for alias, strategies in STRATEGIES.items():
            if isinstance(target, JobQueue):
                yield shape, alias, "auto"
                continue
            yield from ((shape, alias, strategy) for strategy in strategies)
            if alias == "postgresql":
                yield shape, alias, "advisory"
    yield from ((shape, "postgresql", "advisory") for shape in ANY_CLASS)
    yield from (("any class", alias, "held") for alias in SERVERS)


def compiled(shape: str, alias: str, strategy: str) -> list[SQLCompiler]:
    """Compile the statements of a claim."""
    target, where = (SHAPES | ANY_CLASS)[shape]
    named = dialect(alias, paramstyle="named")  # parameters are written as :name
    how = {} if isinstance(target, JobQueue) else {"strategy": strategy}
    statements: list[Any] = claim_statements(target, *where, dialect=named, **how)
    return [statement.compile(dialect=named) for statement in statements]


def claim_sql(shape: str, alias: str, strategy: str) -> str:
    """Write the statements of a claim, each with a line for each clause."""
    statements = (_readable(str(sql)) for sql in compiled(shape, alias, strategy))
    return ";\n".join(statements) + ";\n"


def _readable(text: str) -> str:
    """Break a statement before each clause, and name lists of parameters by their names."""
    text = re.sub(r"__\[POSTCOMPILE_(\w+)\]", r":\1", text)
    text = " ".join(text.split()).replace("( ", "(").replace(" )", ")")
    clauses = r" (FROM|WHERE|(?<!FOR )ORDER BY|RETURNING|FOR (?:NO KEY )?UPDATE|UNION)\b"
    return re.sub(clauses, r"\n    \1", text)


@cache
def written() -> dict[tuple[str, ...], str]:
    """Read the SQL of the file, by shape, database and strategy."""
    _, *sections = FILE.read_text(encoding="utf-8").split("-- ")
    found = (section.partition("\n") for section in sections)
    return {tuple(head.split(" | ")): body.strip() + "\n" for head, _, body in found}


def main() -> None:
    """Write the file."""
    sections = (f"-- {' | '.join(case)}\n{claim_sql(*case)}" for case in cases())
    FILE.write_text("\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
