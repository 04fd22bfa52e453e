"""The verbs: one file for each stage of a job's life, and here the types that they return.

No function is imported here: ``claim`` would hide the module of its name.
"""

from .reap import Reaped, ReapedJob, ReapReason

__all__ = ["ReapReason", "Reaped", "ReapedJob"]
