"""Local training of many clients at once: `fast` (stacked clients) and `loop` (one at a time, the oracle)."""
