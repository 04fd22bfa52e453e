"""``python -m benchmarks.profile``."""

from benchmarks.harness.command import run_by_name

if __name__ == "__main__":
    run_by_name("benchmarks.profile")
