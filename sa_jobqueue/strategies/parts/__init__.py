"""What strategies are made of: the ready rows, the reads of jobs, and the mark."""
