"""The connection that writes, and what a rollback undoes."""
