"""The verbs: one file for each stage of a job's life."""
