"""PostgreSQL: what it can do."""
