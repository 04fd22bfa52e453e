"""The version, alone in a module so that building a package imports nothing else."""

__version__ = "1.0.0rc1"
