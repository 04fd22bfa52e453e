"""Profiling: where the Python time of one claim and one finish goes.

python -m benchmarks.profile --engine postgresql --batch 1 --rows

Client CPU only, in microseconds: waiting for the server and its disk does not count. First
sa_jobqueue beside the driver alone, a Core statement and the ORM, each built once; then
its own time by stage.
"""
