"""SQLite: what it can do, and how."""
