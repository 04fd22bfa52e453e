"""The two sources of a bulk load: rows to insert, and jobs to enqueue."""
