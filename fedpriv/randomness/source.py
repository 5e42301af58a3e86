"""Where random numbers come from.

What is public (partition, initial model, schedule, an aggregator's own draws) comes from a generator that
follows from the seed and a name, such as ("partition",): methods are compared on the same ground.

What privacy rests on (noise, sampling, dropout) comes from a `Source`: a secret of 256 bits and a name such
as ("noise", round), and within it one row of numbers for every client or sample, whoever else is there. So
one sample's or client's absence changes nobody else's numbers, and the same ones come out of every engine,
device and order. The words are those of a cryptographically secure generator (chacha.py). Nothing has a
state, so a continued run needs none.
"""

import hashlib
from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from torch import Tensor

from fedpriv.randomness import chacha, gaussian

KEY_BYTES = 32
Numbers = np.ndarray | Tensor | list[int]  # of clients or samples


def seed_for(seed: int, *name: object) -> int:
    """A 63-bit seed for a named public purpose."""
    text = repr((int(seed), *name)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(seed: int, *name: object, device: str | torch.device = "cpu") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed_for(seed, *name))


def numpy_generator(seed: int, *name: object) -> np.random.Generator:
    return np.random.default_rng(seed_for(seed, *name))


def key_of(seed: int, identity: str) -> bytes:
    """The key of a run that is to be repeatable: no two different runs have the same."""
    return hashlib.blake2b(repr((int(seed), identity)).encode(), digest_size=KEY_BYTES).digest()


class Source:
    """Random numbers for one purpose; `of` gives the source of another, independent of this one."""

    def __init__(self, key: bytes):
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self.key = key
        self._words = np.frombuffer(key, dtype="<u4").astype(np.uint32)  # [8]

    def of(self, *name: object) -> "Source":
        return Source(hashlib.blake2b(repr(name).encode(), key=self.key, digest_size=KEY_BYTES).digest())

    # -- rows: what row n of step s holds depends on nothing but the source, n and s

    def words(self, rows: Numbers, width: int, step: int = 0) -> Tensor:
        """Uniform numbers of 32 bits, int64 [N, width], on the CPU."""
        return torch.from_numpy(self._raw(rows, width, step).astype(np.int64))

    def words_there(self, rows: Tensor, width: int, step: int = 0) -> Tensor:
        """The same by torch operations, where `rows` is: on a device, or inside of vmap."""
        key, names = self._key_there(rows.device), _names_there(rows, step)
        numbers = torch.arange(-(-width // chacha.WORDS), dtype=torch.int32, device=rows.device)
        return chacha.blocks(key, numbers, names).flatten(-2)[..., :width].to(torch.int64) & 0xFFFFFFFF

    def _key_there(self, device: torch.device) -> Tensor:
        return torch.from_numpy(self._words.view(np.int32)).to(device)

    def _raw(self, rows: Numbers, width: int, step: int) -> np.ndarray:
        from fedpriv.randomness import compiled

        names = _names(rows, step)
        out = np.empty((len(names), width), np.uint32)
        compiled.words(out, self._words, names)
        return out

    def uniforms(self, rows: Numbers, width: int, step: int = 0) -> Tensor:
        """Uniform numbers in [0, 1) of 53 bits, float64 [N, width], on the CPU."""
        raw = self._raw(rows, 2 * width, step)
        whole = raw[:, ::2].astype(np.uint64) << np.uint64(21) | raw[:, 1::2] >> np.uint32(11)
        return torch.from_numpy(whole.astype(np.float64) * 2.0**-53)

    def below(self, chance: float | Tensor, rows: Numbers, width: int, step: int = 0) -> Tensor:
        """True with a given chance (one for all, or [N, 1]) or a little less: bool [N, width], on the CPU."""
        return self.words(rows, width, step) < limit_of(chance)

    def normals(self, rows: Numbers, like: Tensor, step: int = 0) -> Tensor:
        """Standard normals in the shape of `like`, [N, width], on its device."""
        z = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
        self.add_normals_(z, torch.ones(len(z), device=like.device), rows, step)
        return z.to(like.dtype)

    def add_normals_(self, target: Tensor, scale: Tensor, rows: Numbers, step: int = 0) -> None:
        """target[i] += scale[i] * z, z the standard normals of row rows[i]; target [N, width], scale [N]."""
        if not target.is_cpu:
            names = _names_there(torch.as_tensor(rows, device=target.device), step)
            z = gaussian.normals(self._key_there(target.device), names, target.shape[1]).to(target.dtype)
            target.addcmul_(z, scale[:, None].to(target.dtype))
        elif target.dtype != torch.float32 or not target.is_contiguous():
            target.add_(self.normals(rows, target, step).mul_(scale[:, None].to(target.dtype)))
        else:
            from fedpriv.randomness import compiled

            factors = np.ascontiguousarray(scale.numpy(), dtype=np.float32)
            compiled.add_normals(target.detach().numpy(), factors, self._words, _names(rows, step))

    # -- one row

    def normal(self, like: Tensor, step: int = 0) -> Tensor:
        """Standard normals in the shape of a vector."""
        return self.normals([0], like[None], step)[0]

    def stream(self) -> Callable[[int], np.ndarray]:
        """As many words of 64 bits as are asked for, one call after another."""
        calls = count()
        return lambda number: self._raw([0], 2 * number, next(calls)).view(np.uint64)[0]

    def permutation(self, number: int) -> Tensor:
        """A uniformly random order of `number` things, int64, on the CPU."""
        raw = self._raw([0], 2 * number, 0).view(np.uint64)[0]
        return torch.from_numpy(raw.argsort(kind="stable"))


def limit_of(chance: float | Tensor) -> Tensor:
    """Words below this come up with the given chance or a little less."""
    return (torch.as_tensor(chance, dtype=torch.float64) * 2.0**32).floor().to(torch.int64)


def _names_there(rows: Tensor, step: int) -> Tensor:
    """As `_names`, in signed numbers and on the device of `rows`."""
    low = ((rows + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    return torch.stack([low, torch.full_like(rows, step), rows >> 32], -1).to(torch.int32)


def _names(rows: Numbers, step: int) -> np.ndarray:
    """Three words a row: its number and the step."""
    numbers = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    names = np.empty((len(numbers), 3), np.uint32)
    names[:, 0], names[:, 1], names[:, 2] = numbers, step, numbers.astype(np.int64) >> 32
    return names
