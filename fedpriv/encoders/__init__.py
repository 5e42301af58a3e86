"""Frozen image encoders, and `fedpriv features`, which runs a dataset through one and keeps the result."""
