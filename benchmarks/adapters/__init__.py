"""The ways to queue that are compared: hand-written SQL, sa_jobqueue, and its peers."""
