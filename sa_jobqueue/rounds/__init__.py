"""Rounds: the same rows once more."""
