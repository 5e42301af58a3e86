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
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

from fedpriv.accelerator import there
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
        self._heads: dict[torch.device, Tensor] = {}

    def of(self, *name: object) -> "Source":
        return Source(hashlib.blake2b(repr(name).encode(), key=self.key, digest_size=KEY_BYTES).digest())

    # -- rows: what row n of step s holds depends on nothing but the source, n and s

    def words(self, rows: Numbers, width: int, step: int = 0) -> Tensor:
        """Uniform numbers of 32 bits, int64 [N, width], on the CPU."""
        return torch.from_numpy(self._raw(rows, width, step).astype(np.int64))

    def words_there(self, rows: Tensor, width: int, step: int = 0) -> Tensor:
        """The same by torch operations, where `rows` is: on a device, or inside of vmap."""
        head, names = self._head(rows.device), _names_there(rows, step)
        numbers = torch.arange(-(-width // chacha.WORDS), dtype=torch.int32, device=rows.device)
        return chacha.blocks(head, numbers, names).flatten(-2)[..., :width].to(torch.int64) & 0xFFFFFFFF

    def _head(self, device: torch.device) -> Tensor:
        if device not in self._heads:
            self._heads[device] = there(chacha.head(self._words), device)
        return self._heads[device]

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

    def uniforms_on(self, device: torch.device, rows: Numbers, width: int, step: int = 0) -> Tensor:
        """The same made on a device, by torch operations; it must have float64."""
        if device.type == "cpu":
            return self.uniforms(rows, width, step)
        rows = there(rows, device)
        first, second = self.words_there(rows, 2 * width, step).unflatten(-1, (width, 2)).unbind(-1)
        whole: Tensor = (first << 21) | (second >> 11)
        return whole.double() * 2.0**-53

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
            z = self.normals_there(there(rows, target.device), target.shape[1], range(step, step + 1))[0]
            target.addcmul_(z.to(target.dtype), scale[:, None].to(target.dtype))
        elif target.dtype != torch.float32 or not target.is_contiguous():
            target.add_(self.normals(rows, target, step).mul_(scale[:, None].to(target.dtype)))
        else:
            from fedpriv.randomness import compiled

            factors = np.ascontiguousarray(scale.numpy(), dtype=np.float32)
            compiled.add_normals(target.detach().numpy(), factors, self._words, _names(rows, step))

    def named(self, rows: Numbers) -> tuple[np.ndarray, np.ndarray]:
        """What compiled.add_normals takes: the key, and names of rows, whose second word is the step."""
        return self._words, _names(rows, 0)

    def normals_there(self, rows: Tensor, width: int, steps: range) -> Tensor:
        """Standard normals by torch operations, where `rows` is: float32 [steps, N, width] in one draw."""
        each = torch.arange(steps.start, steps.stop, dtype=torch.int32, device=rows.device)
        return gaussian.normals(self._head(rows.device), _names_there(rows, each[:, None]), width)

    # -- one row

    def normal(self, like: Tensor, step: int = 0) -> Tensor:
        """Standard normals in the shape of a vector."""
        return self.normals([0], like[None], step)[0]

    def stream(self) -> Callable[[int], np.ndarray]:
        """As many words of 64 bits as are asked for, one call after another."""
        calls = count()
        return lambda number: self._raw([0], 2 * number, next(calls)).view(np.uint64)[0]

    def permutation(self, number: int, device: torch.device | None = None) -> Tensor:
        """A uniformly random order of `number` things, int64, on the CPU or made on a device."""
        if device is None or device.type == "cpu":
            return torch.from_numpy(_order(self._raw([0], 2 * number, 0).view(np.uint64)[0]))
        words = self.words_there(torch.zeros(1, dtype=torch.int64, device=device), 2 * number)
        low, high = words.view(number, 2).unbind(1)
        return (low | (high - (1 << 31)) << 32).argsort(stable=True)  # signed, in the order of unsigned ones


def normals_of(sources: Sequence[Source], likes: Sequence[Tensor], step: int = 0) -> list[Tensor]:
    """What `normal` of each source gives in the shape of each vector; on a device in one draw for all."""
    where = likes[0].device
    if where.type == "cpu":
        return [source.normal(like, step) for source, like in zip(sources, likes, strict=True)]
    groups = [-(-len(like) // gaussian.GROUP) for like in likes]
    heads = torch.stack([source._head(where) for source in sources])  # [K, 12]
    which = there(np.repeat(np.arange(len(groups)), groups), where)  # [M] a group of numbers each
    first = there(np.concatenate([np.arange(g) for g in groups]).astype(np.int32), where)
    names = _names_there(torch.zeros_like(which), step)
    z = gaussian.numbers_of(heads[which], first[:, None], names)  # [M, 1, GROUP]
    parts = z.view(-1).split([g * gaussian.GROUP for g in groups])
    return [part[: len(like)].to(like.dtype) for part, like in zip(parts, likes, strict=True)]


def _order(words: np.ndarray) -> np.ndarray:
    """What a stable `argsort` gives. The words themselves are sorted, each with its place in its low bits,
    which takes a sixth of the time or less; only where two are alike above these does the rest decide."""
    places = np.arange(len(words), dtype=np.uint64)
    low = np.uint64((1 << max(0, len(words) - 1).bit_length()) - 1)
    packed = words & ~low | places
    packed.sort()
    if ((packed[1:] ^ packed[:-1]) <= low).any():
        return words.argsort(kind="stable")
    return (packed & low).view(np.int64)


def limit_of(chance: float | Tensor) -> Tensor:
    """Words below this come up with the given chance or a little less."""
    return (torch.as_tensor(chance, dtype=torch.float64) * 2.0**32).floor().to(torch.int64)


def _names_there(rows: Tensor, step: int | Tensor) -> Tensor:
    """As `_names`, in signed numbers and on the device of `rows`; for several steps [S, 1]: [S, N, 3]."""
    low, high = rows[..., None].view(torch.int32).unbind(-1)
    if not isinstance(step, Tensor):
        step = torch.full_like(low, step)
    return torch.stack(torch.broadcast_tensors(low, step, high), -1)


def _names(rows: Numbers, step: int) -> np.ndarray:
    """Three words a row: its number and the step."""
    numbers = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    names = np.empty((len(numbers), 3), np.uint32)
    names[:, 0], names[:, 1], names[:, 2] = numbers, step, numbers.astype(np.int64) >> 32
    return names
