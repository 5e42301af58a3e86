"""The personal layer in front of the model (conf group transform); its parameters stay at home."""
