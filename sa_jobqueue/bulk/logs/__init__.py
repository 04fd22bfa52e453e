"""The logs of a bulk load: in files, or in two tables of the loaded database."""
