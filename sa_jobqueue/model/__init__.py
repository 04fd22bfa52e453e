"""A table becomes a queue: statuses, columns, indexes, and where a class has them."""
