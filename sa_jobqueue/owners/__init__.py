"""Owners: who claims, whether they are alive, and the named locks that tell it.

:meth:`NamedLock.holder` returns a :class:`Holder`.
"""

from .named_lock import Holder

__all__ = ["Holder"]
