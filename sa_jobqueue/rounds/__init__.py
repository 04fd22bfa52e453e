"""Rounds: the same rows made claimable once more. ``round_progress`` returns a RoundProgress."""

from .progress import RoundProgress

__all__ = ["RoundProgress"]
