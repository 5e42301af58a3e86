"""Each client's privacy budget (conf group budget)."""
