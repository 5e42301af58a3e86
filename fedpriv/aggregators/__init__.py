"""How uploads become one update (conf group aggregator)."""
