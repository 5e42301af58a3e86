"""Noise turned off, and rows of noise listened to.

Noise is what comes out of `Source` and the samplers built on it, wherever they are called.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedpriv.randomness import laplace, poisson
from fedpriv.randomness.source import Source


@contextmanager
def quiet() -> Iterator[None]:
    """No noise: normals, Laplace and Poisson numbers are zero, wherever they are drawn. Sampling, batches,
    dropout and random rounding are as ever."""

    def normals(self: Source, rows: Any, like: Tensor, step: int = 0) -> Tensor:
        return torch.zeros_like(like)

    def add_normals_(self: Source, target: Tensor, scale: Tensor, rows: Any, step: int = 0) -> None:
        return None

    def laplaces(source: Source, rows: Any, like: Tensor, step: int = 0) -> Tensor:
        return torch.zeros_like(like)

    def none(count: int, *_: Any) -> np.ndarray:
        return np.zeros(count, dtype=np.int64)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Source, "normals", normals))
        stack.enter_context(patch.object(Source, "add_normals_", add_normals_))
        for function, instead in (
            (laplace.laplaces, laplaces),
            (poisson.skellam, none),
            (poisson.poisson, none),
        ):
            for place, name in _where(function):
                stack.enter_context(patch.object(place, name, instead))
        yield


def _where(function: Any) -> list[tuple[Any, str]]:
    """Every module that has a function by some name, a user's own too."""
    return _found(function, len(sys.modules))


@lru_cache
def _found(function: Any, modules: int) -> list[tuple[Any, str]]:
    return [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is function
    ]


Draw = tuple[bytes, int, int]  # a row of noise: key, number and step


@contextmanager
def drawn() -> Iterator[tuple[list[Draw], list[tuple[Draw, Tensor]]]]:
    """Which rows of noise are drawn, in order; and of single rows of normals what they are to be like, which
    mostly is what they are added to."""
    names: list[Draw] = []
    likes: list[tuple[Draw, Tensor]] = []
    inside = threading.local()  # engines draw ahead in other threads

    def note(source: Source, rows: Any, step: int) -> None:
        listed = rows.tolist() if hasattr(rows, "tolist") else list(rows)
        names.extend((source.key, int(row), int(step)) for row in listed)

    originals = Source.normals, Source.add_normals_, Source.uniforms, Source.stream

    def normals(self: Source, rows: Any, like: Tensor, step: int = 0) -> Tensor:
        if outer := not getattr(inside, "normals", False):  # both are made of each other
            note(self, rows, step)
            if isinstance(rows, list) and rows == [0]:
                likes.append(((self.key, 0, int(step)), like.detach()[0].clone()))
        inside.normals = True
        try:
            return originals[0](self, rows, like, step)
        finally:
            inside.normals = not outer

    def add_normals_(self: Source, target: Tensor, scale: Tensor, rows: Any, step: int = 0) -> None:
        if outer := not getattr(inside, "normals", False):
            note(self, rows, step)
        inside.normals = True
        try:
            originals[1](self, target, scale, rows, step)
        finally:
            inside.normals = not outer

    def uniforms(self: Source, rows: Any, width: int, step: int = 0) -> Tensor:
        note(self, rows, step)
        return originals[2](self, rows, width, step)

    def stream(self: Source) -> Callable[[int], np.ndarray]:
        note(self, [0], 0)
        return originals[3](self)

    with (
        patch.object(Source, "normals", normals),
        patch.object(Source, "add_normals_", add_normals_),
        patch.object(Source, "uniforms", uniforms),
        patch.object(Source, "stream", stream),
    ):
        yield names, likes
