"""Benchmarks: sa_jobqueue beside hand-written SQL and its peers, in one run.

``python -m benchmarks NAME --database postgresql`` runs the command ``main`` of benchmarks/NAME.py
and writes its figures to ``benchmarks/results/NAME-DATABASE.json``;
docs/internals/performance.md says how to read them. ``python -m benchmarks.NAME`` does the same.

To add a benchmark, write one file, benchmarks/NAME.py. It says what is measured and which variants
are compared; the harness does the rest:

    if __name__ == "__main__":  # behind the imports
        run_by_name(__spec__.name)

    @benchmark(number("--jobs", 1_000), ROUNDS, tables=tables)
    def main(database: Database, *, jobs: int, rounds: int) -> Figures:
        \"\"\"Say in a sentence what is measured: the help of the command.\"\"\"
        seconds = in_turn({"polling": ..., "waking": ...}, rounds)
        return {"results": [{"way": way, **latency(times)} for way, times in seconds.items()]}

    def tables(figures: Figures) -> str:
        return table((("", "{way}"), ("p50 ms", "{p50:.2f}")), figures["results"])

* :mod:`benchmarks.harness` gets a database, runs processes, takes turns, times, reports, draws.
* :mod:`benchmarks.adapters` are the ways to queue. A new adapter is a class and a line of the
  catalogue; then ``python -m benchmarks drain`` compares it with all others.
"""
