"""What all benchmarks share: databases, processes, rounds, timing, reports and plots."""
