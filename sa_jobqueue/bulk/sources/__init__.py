"""The sources of a bulk load: rows of a mapped class, and jobs to enqueue."""
