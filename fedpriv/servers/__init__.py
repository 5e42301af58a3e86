"""The server's step, from a round's move to the next model (conf group server)."""
