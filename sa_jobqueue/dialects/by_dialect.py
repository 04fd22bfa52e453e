"""Values for each dialect, which go when the dialect goes."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ref

from sqlalchemy.engine import Dialect

V = TypeVar("V")


class ByDialect(Generic[V]):
    """A value for each dialect that is alive.

    A WeakKeyDictionary does the same, and takes three times as long to look a value up. Each verb
    looks up several.
    """

    def __init__(self) -> None:
        #: By the id of the dialect.
        self.values: dict[int, V] = {}
        self.references: dict[int, ref[Dialect]] = {}

    def get(self, dialect: Dialect) -> V | None:
        """Return the value of a dialect; None if it has none."""
        return self.values.get(id(dialect))

    def setdefault(self, dialect: Dialect, value: V) -> V:
        """Return the value of a dialect; if it has none, this is its value from now on."""
        number, own = id(dialect), ref(self)

        def forget(_: object) -> None:
            kept = own()
            if kept is not None:
                kept.values.pop(number, None)
                kept.references.pop(number, None)

        self.references.setdefault(number, ref(dialect, forget))
        return self.values.setdefault(number, value)
