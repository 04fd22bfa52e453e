"""Benchmarks: sa_jobqueue beside hand-written SQL and its peers, in one run.

``python -m benchmarks`` drains queues side by side, ``python -m benchmarks.growth``
measures claims on growing tables. docs/performance.md says how to read them.
"""
