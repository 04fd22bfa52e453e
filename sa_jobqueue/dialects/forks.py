"""What a forked child closes: handles of locks that are its parent's.

A child that kept such a handle open would keep its dead parent's lock alive.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class LeftToParent(Protocol):
    """Something open that a fork copies, and that stays the parent's."""

    def leave_to_parent(self) -> None:
        """Close the child's copy without a word to anybody."""


_open: WeakSet[LeftToParent] = WeakSet()


def leave_to_parent_after_fork(handle: LeftToParent) -> None:
    """Have a handle's :meth:`~LeftToParent.leave_to_parent` called in each forked child."""
    _open.add(handle)


def _leave_all_to_parent() -> None:
    for handle in list(_open):
        handle.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
