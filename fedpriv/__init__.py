"""fedpriv: compose, run and honestly account private federated learning experiments."""

__version__ = "0.1.0"
