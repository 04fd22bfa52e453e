"""The running process: its signals, its name, and how its code waits."""
