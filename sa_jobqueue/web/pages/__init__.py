"""Pages: a file for each, with what it shows and what its buttons do."""
