"""Noise that is correlated over rounds: matrices, their sensitivity, and the noise of every round."""
