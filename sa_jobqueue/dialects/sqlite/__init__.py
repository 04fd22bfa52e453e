"""SQLite: what it can do."""
