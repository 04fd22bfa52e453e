"""Positions: how many jobs come before a job, and how long they take."""
