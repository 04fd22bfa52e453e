"""``sa-jobqueue demo``: producers and consumers on an example table, and a proof of the result."""
