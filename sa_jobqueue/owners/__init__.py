"""Owners: who claims, and whether they are alive."""
