"""Rounds: the same rows once more; ``start_round`` and ``round_progress`` return these types."""

from .rounds import RoundProgress
from .start import RoundStart

__all__ = ["RoundProgress", "RoundStart"]
