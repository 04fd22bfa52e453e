"""Owners: who claims, and whether they are alive; ``NamedLock.holder()`` returns a Holder."""

from .named_lock import Holder

__all__ = ["Holder"]
