"""``sa-jobqueue demo``: producers and consumers at work, and the proof that nothing was lost."""
