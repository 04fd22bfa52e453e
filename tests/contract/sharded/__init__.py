"""Verbs through SQLAlchemy's ShardedSession."""
