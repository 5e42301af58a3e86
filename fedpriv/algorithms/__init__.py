"""Local objective and server step (conf group algorithm)."""
