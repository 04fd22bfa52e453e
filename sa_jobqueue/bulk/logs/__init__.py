"""The two redo and undo logs of a bulk load: in a file, and in the database."""
