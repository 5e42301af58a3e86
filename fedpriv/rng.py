"""Randomness by name: one generator per purpose (and round), so changing one part leaves the others' draws.

Every generator is derived from the run's seed and a name such as ("batches", round). Nothing is drawn from a
global generator, so a continued run needs no generator state: the round number is enough.
"""

import hashlib

import numpy as np
import torch


def seed_for(seed: int, *name: object) -> int:
    """A 63-bit seed for a named purpose."""
    text = repr((int(seed), *name)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(seed: int, *name: object, device: str | torch.device = "cpu") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed_for(seed, *name))


def numpy_generator(seed: int, *name: object) -> np.random.Generator:
    return np.random.default_rng(seed_for(seed, *name))
