"""What runs once before round 0 (conf group stage)."""
