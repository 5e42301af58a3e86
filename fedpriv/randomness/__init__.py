"""Random numbers by name: what is public follows from the seed, what privacy rests on from a key."""
