"""Sources of random numbers for tests."""

from fedpriv.randomness.source import Source


def source(number: int = 0) -> Source:
    """A key for every number."""
    return Source(number.to_bytes(32, "little"))
