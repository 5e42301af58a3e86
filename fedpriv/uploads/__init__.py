"""What crosses the wire, and in how many bytes (conf group upload)."""
