"""Where a run's numbers go besides its own folder (conf group logger)."""
