"""Randomness by name: one generator per purpose (and round), so changing one part leaves the others' draws.

Every generator is derived from a key and a name such as ("batches", round). Nothing is drawn from a global
generator, so a continued run needs no generator state: the key and the round number are enough. The key is
the run's seed, a number; or, for what must be secret, bytes from the operating system.
"""

import hashlib

import numpy as np
import torch

Key = int | bytes
_WORDS = 624  # of 32 bits: the state of the Mersenne Twister


def seed_for(key: Key, *name: object) -> int:
    """A 63-bit seed for a named purpose."""
    text = repr((key if isinstance(key, bytes) else int(key), *name)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(key: Key, *name: object, device: str | torch.device = "cpu") -> torch.Generator:
    made = torch.Generator(device=device).manual_seed(seed_for(key, *name))
    if isinstance(key, bytes) and made.device.type == "cpu":
        fill_state(made, key, *name)
    return made


def fill_state(twister: torch.Generator, key: bytes, *name: object) -> None:
    """Set all 19,937 bits of a CPU generator: its own seeding takes 32, few enough to try them all."""
    text = repr((key, *name)).encode()
    wide = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    words = np.random.Philox(key=wide).random_raw(_WORDS) >> np.uint64(32)
    state = twister.manual_seed(0).get_state()
    # torch keeps: seed (8 bytes), numbers left (4), seeded (4), next (8), then the words as 64-bit numbers.
    state.numpy()[24 : 24 + 8 * _WORDS] = words.view(np.uint8)
    twister.set_state(state)


def numpy_generator(key: Key, *name: object) -> np.random.Generator:
    return np.random.default_rng(seed_for(key, *name))
