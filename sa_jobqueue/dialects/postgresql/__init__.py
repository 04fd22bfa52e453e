"""PostgreSQL: what it can do, and how."""
