"""Rounds: the same rows made claimable once more.

``start_round`` reports a RoundStart, ``round_progress`` returns a RoundProgress.
"""

from .progress import RoundProgress
from .starter import RoundStart

__all__ = ["RoundProgress", "RoundStart"]
