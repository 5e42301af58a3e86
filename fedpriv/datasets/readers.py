"""Readers of the official image formats, straight from the files as distributed (gzip and tar included)."""

import gzip
import io
import math
import pickle
import pickletools
import re
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def parse_idx(content: bytes) -> "Tensor":
    """An MNIST-format array: two zero bytes, type 8 (unsigned byte), number of axes, then their lengths."""
    import torch

    if content[:3] != b"\0\0\x08" or len(content) < 8:
        raise ValueError("not an idx file of unsigned bytes")
    axes = content[3]
    shape = tuple(int(length) for length in np.frombuffer(content, dtype=">u4", count=axes, offset=4))
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes)
    if values.size != np.prod(shape):
        raise ValueError(f"{values.size} bytes of data for shape {shape}")
    return torch.from_numpy(values.reshape(shape).copy())


def read_idx(path: Path) -> "Tensor":
    """An idx file, plain or gzipped."""
    content = path.read_bytes()
    return parse_idx(gzip.decompress(content) if path.suffix == ".gz" else content)


class _ArrayUnpickler(pickle.Unpickler):
    """Only what a pickled array needs: a pickle from elsewhere could otherwise run any code."""

    NEEDED = frozenset({"_reconstruct", "_frombuffer", "ndarray", "dtype", "encode", "scalar"})

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in ("numpy", "_codecs") and name in self.NEEDED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into a CIFAR batch")


def _cifar_batch(content: bytes) -> "tuple[Tensor, Tensor]":
    import torch

    with warnings.catch_warnings():
        # The official pickles were written by a NumPy whose dtype flags were integers.
        warnings.filterwarnings("ignore", message=r".*align should be passed")
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    labels = batch["labels"] if "labels" in batch else batch["fine_labels"]
    images = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images, {len(labels)} labels")
    return torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64)


def read_cifar(source: Path, train: Sequence[str], test: Sequence[str]) -> "list[tuple[Tensor, Tensor]]":
    """Images and labels of the named batches, from the unpacked folder or the archive itself."""
    import torch

    if source.is_dir():
        contents = {name: (source / name).read_bytes() for name in (*train, *test)}
    else:
        with tarfile.open(source, "r|gz") as archive:
            contents = {
                Path(member.name).name: archive.extractfile(member).read()  # type: ignore[union-attr]
                for member in archive
                if member.isfile()
            }
    halves = []
    for names in (train, test):
        batches = [_cifar_batch(contents[name]) for name in names]
        halves.append((torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])))
    return halves


def read_svhn(path: Path) -> "tuple[Tensor, Tensor]":
    """A cropped-digits .mat file; it stores images as [H, W, C, N] and the digit 0 as label 10."""
    import torch
    from scipy.io import loadmat

    content = loadmat(path)
    images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))  # [N, C, H, W]
    labels = content["y"].astype(np.int64).ravel() % 10
    return torch.from_numpy(images), torch.from_numpy(labels)


MOST_BYTES = 2**30  # of an unpacked array: a small file can unpack to anything


def read_joblib(path: Path) -> np.ndarray:
    """An array as joblib keeps it, without unpickling: whoever wrote a pickle decides what loading it runs.

    Such a file is, packed by zlib or not, a short pickle that says shape, order and type, then the numbers.
    The pickle is only read as a list of operations, none of which is done.
    """
    content = path.read_bytes()
    if content[:1] != b"\x80":
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(content, MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("cut off or too large")
    said, place = _header(content)
    kind = next((a for a in said if isinstance(a, str) and re.fullmatch(r"[fiu][1248]", a)), None)
    sign = next((a for a in said if a in ("<", ">", "|")), "|")
    if "NumpyArrayWrapper" not in str(said[:2]) or kind is None or "shape" not in said or "order" not in said:
        raise ValueError("no plain array of numbers")
    after = said[said.index("shape") + 1 : said.index("order")]
    shape = tuple(a for a in after if isinstance(a, int) and a >= 0)
    dtype = np.dtype(sign + kind)
    size, rest = math.prod(shape) * dtype.itemsize, len(content) - place - 1  # the last byte ends the pickle
    padding = 0 if rest == size else 1 + content[place]  # newer files align the numbers and say by how much
    if padding + size != rest:
        raise ValueError(f"{rest} bytes of numbers for shape {shape}")
    order: Any = "F" if said[said.index("order") + 1] == "F" else "C"
    values = np.frombuffer(content, dtype, count=math.prod(shape), offset=place + padding)
    return values.reshape(shape, order=order)


def _header(content: bytes) -> tuple[list[Any], int]:
    """The constants of the pickle before the numbers, and where those begin: behind the second BUILD."""
    stream, said, built = io.BytesIO(content), [], 0
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name not in ("PROTO", "FRAME", "MEMOIZE", "BINGET", "BINPUT") and argument is not None:
            said.append(argument)
        built += operation.name == "BUILD"
        if built == 2:
            return said, stream.tell()
    raise ValueError("no array in it")
