"""What a round costs on a device: kernels, bytes between it and the host, and times the host waits for it.

The local steps are watched apart. Inside of them the host must never wait: it runs ahead and the device is
never idle. A copy from ordinary memory waits too, as CUDA's does, unless it is asked not to.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.engine.chunk import Chunk
from fedpriv.engine.fast import FastEngine
from fedpriv.stages.fedpd.losses import Step

# Their result's shape, or a number, depends on values: the host has to ask.
WAITS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount",
        "unique_consecutive", "repeat_interleave", "_linalg_eigh", "multinomial", "histc", "is_nonzero",
    )
}  # fmt: skip
FREE = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::detach"}
FREE |= {"aten::_unsafe_view", "aten::lift_fresh", "aten::alias", "aten::new_empty_strided"}


@cache
def _free(func: Any) -> bool:
    """Whether it launches nothing: a view, or memory only."""
    returned = func._schema.returns
    views = [r.alias_info for r in returned]
    return func._schema.name in FREE or bool(views and all(v and not v.is_write for v in views))


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()


@dataclass
class Watch:
    kernels: int = 0
    moved: int = 0  # bytes
    steps: int = 0  # local steps, of all clients of a chunk together
    in_steps: int = 0  # kernels
    by_name: Counter[str] = field(default_factory=Counter)  # kernels in steps
    waits: list[str] = field(default_factory=list)  # in steps: what waited, and where
    stepping: bool = False
    strict: Callable[[bool], None] = lambda on: None  # told when steps begin and end

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any, there: Callable[[Tensor], bool]) -> None:
        """An operation with a tensor of the device among what it takes or gives; `there` says which are."""
        name = func._schema.name
        crossing = self._crossing(name, args, kwargs, result, there)
        self.moved += crossing
        if crossing or self._waits(name, args, kwargs):
            if self.stepping and not (
                name == "aten::_to_copy" and there(result) and kwargs.get("non_blocking")
            ):
                self.waits.append(f"{name} at {_place()}")
            if crossing:
                return
        given = result if isinstance(result, list | tuple) else [result]
        if not _free(func) and any(isinstance(t, Tensor) and t.numel() for t in given):
            self.kernels += 1
            if self.stepping:
                self.in_steps += 1
                self.by_name[name] += 1

    def _waits(self, name: str, args: Any, kwargs: Any) -> bool:
        if name == "aten::repeat_interleave":
            return kwargs.get("output_size") is None
        if name in WAITS:
            return True
        if name in ("aten::index", "aten::index_put", "aten::index_put_"):
            return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return False

    def _crossing(self, name: str, args: Any, kwargs: Any, result: Any, there: Any) -> int:
        """Bytes it moves between host and device."""
        if name == "aten::_to_copy":
            return _bytes(result) if there(args[0]) != there(result) else 0
        if name == "aten::copy_":
            return _bytes(args[1]) if there(args[0]) != there(args[1]) else 0
        if name == "aten::_local_scalar_dense":
            return args[0].element_size()
        if name == "aten::equal":
            return 1
        if name in ("aten::index", "aten::index_put", "aten::index_put_"):
            return sum(_bytes(i) for i in args[1] if isinstance(i, Tensor) and not there(i))
        return 0

    def sees_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch local steps: those of the fast engine and of privacy distillation."""

        @contextmanager
        def stepping(on: bool) -> Iterator[None]:
            before, self.stepping = self.stepping, on
            self.strict(on)
            try:
                yield
            finally:
                self.stepping = before
                self.strict(before)

        def within(owner: Any, name: str, on: bool, count: Callable[..., int] = lambda *a, **k: 0) -> None:
            inner = getattr(owner, name)

            def run(*args: Any, **kwargs: Any) -> Any:
                self.steps += count(*args, **kwargs)
                with stepping(on):
                    return inner(*args, **kwargs)

            monkeypatch.setattr(owner, name, run if not hasattr(inner, "__self__") else staticmethod(run))

        def taken(engine: Any, net: Any, work: Any, data: Any, chosen: Any, *rest: Any, **more: Any) -> int:
            return int(work.plan.active[chosen].any(0).sum())

        within(FastEngine, "_train_chunk", True, taken)
        within(Chunk, "of", False)  # a round's batches are brought over once, before its steps
        within(Step, "__call__", True, lambda *a, **k: 1)


def _place() -> str:
    """The innermost line of the package that is running."""
    for frame in reversed(traceback.extract_stack()):
        if "/fedpriv/" in frame.filename:
            return f"fedpriv/{frame.filename.rpartition('/fedpriv/')[2]}:{frame.lineno} {frame.line}"
    return "elsewhere"
