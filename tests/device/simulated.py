"""A device that is not there: tensors that say `meta`, hold real numbers on the CPU and follow CUDA's rules.

torch sees a tensor of the device `meta` without data, so nothing can read it by accident; below it every
operation is done on the CPU's numbers, after CUDA's rules were asked:

  all tensors of an operation are on one device; a CPU tensor without dimensions may join a pointwise one
  a CPU index may index a device's tensor, and not the other way round
  random numbers come from a generator of the device they are drawn on
  no products of integers; no view as numpy

What CUDA does and a CPU hides is counted (watching.py): kernels, bytes that cross, and every time the host
has to wait for the device. `lacks` makes it a poorer one: MPS has no float64 and no eigenvalues.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device.watching import Watch

WHERE, CPU = torch.device("meta"), torch.device("cpu")
MPS_LACKS = frozenset({"float64", "aten::_linalg_eigh", "aten::poisson"})
_real_tensor, _real_as_tensor, _RealGenerator = torch.tensor, torch.as_tensor, torch.Generator
# What decides by itself where its tensors may be.
_COPIES = {"aten::_to_copy", "aten::copy_"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::baddbmm_", "aten::addmm_"}
_PRODUCTS |= {"aten::mv", "aten::dot", "aten::addmv"}


class RulesError(RuntimeError):
    """What CUDA would refuse."""


class DeviceTensor(torch.Tensor):
    value: Tensor  # the numbers, on the CPU

    @staticmethod
    def __new__(cls, value: Tensor) -> "DeviceTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            layout=value.layout,
            device=WHERE,
        )

    def __init__(self, value: Tensor):
        self.value = value

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert _device is not None, "a tensor has outlived its device"
        return _device.run(func, args, kwargs or {})

    # What torch does in C++ past the dispatcher.

    @property
    def data(self) -> Tensor:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, new: Tensor) -> None:
        if not isinstance(new, DeviceTensor):
            raise RulesError("a device's tensor cannot take the CPU's data")
        torch.Tensor.data.__set__(self, new)
        self.value = new.value

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a device's tensor to numpy; use Tensor.cpu() first")

    def new_tensor(self, data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or WHERE)

    def __repr__(self, **options: Any) -> str:
        return f"DeviceTensor({self.value})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as what is loaded with map_location=cpu."""
        return self.detach().cpu().__reduce_ex__(protocol)


class DeviceGenerator(_RealGenerator):
    """Of the device, if asked for; a plain one else."""

    known: "dict[int, DeviceGenerator]" = {}  # noqa: RUF012  by address: torch hands on another object

    def __new__(cls, device: Any = CPU) -> Any:
        if torch.device(device) != WHERE:
            return _RealGenerator(device)
        made = super().__new__(cls)
        cls.known[made._cdata] = made
        return made

    def __init__(self, device: Any = CPU):
        pass

    @property
    def device(self) -> torch.device:
        return WHERE


def _map(x: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, list | tuple):
        return type(x)(_map(y, change) for y in x)
    return x


def _tensors(x: Any, found: list[Tensor]) -> list[Tensor]:
    if isinstance(x, Tensor):
        found.append(x)
    elif isinstance(x, list | tuple):
        for y in x:
            _tensors(y, found)
    return found


@cache
def _written(func: Any) -> tuple[int, ...]:
    """Positions of the arguments that are changed in place."""
    arguments = func._schema.arguments
    return tuple(n for n, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write)


@cache
def _joins_scalars(func: Any) -> bool:
    """Whether a CPU tensor without dimensions may take part."""
    name = func._schema.name.removesuffix("_")
    return torch.Tag.pointwise in func.tags or name in ("aten::where", "aten::masked_fill")


class Device(TorchDispatchMode):
    def __init__(self, watch: Watch, lacks: frozenset[str] = frozenset()):
        super().__init__()
        self.watch, self.lacks = watch, lacks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if DeviceTensor in types or kwargs.get("device") == WHERE:
            return self.run(func, args, kwargs)
        self._generators(func, args, kwargs, here=False)
        return func(*args, **kwargs)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = _tensors((args, tuple(kwargs.values())), [])
        asked = kwargs.get("device")
        here = (asked or WHERE) == WHERE  # where the result is
        if func._schema.name == "aten::copy_":
            here = isinstance(args[0], DeviceTensor)
        self._rules(func, args, kwargs, tensors)
        self._generators(func, args, kwargs, here)
        own: dict[int, Tensor] = {}

        def inside(t: Tensor) -> Tensor:
            if not isinstance(t, DeviceTensor):
                return t
            own[id(t.value)] = t
            return t.value

        values = _map(args, inside)
        options = {n: _map(v, inside) for n, v in kwargs.items()}
        if asked is not None:
            options["device"] = CPU
            if func._schema.name == "aten::_to_copy" and asked != (tensors[0].device):
                options["non_blocking"] = False
        result = func(*values, **options)
        for t in (args[n] for n in _written(func) if n < len(args)):
            if isinstance(t, DeviceTensor) and t.shape != t.value.shape:  # such as squeeze_
                torch.Tensor.data.__set__(t, DeviceTensor(t.value))
        if here:
            result = _map(result, lambda t: own[id(t)] if id(t) in own else DeviceTensor(t))
        self.watch.saw(func, args, kwargs, result, lambda t: isinstance(t, DeviceTensor))
        wide = any(t.dtype == torch.float64 for t in _tensors(result, []))
        if here and wide and "float64" in self.lacks:
            raise RulesError(f"{func}: this device has no float64")
        return result

    def _rules(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
        name = func._schema.name
        if name in self.lacks:
            raise RulesError(f"{func}: this device does not have it")
        if any(t.device == WHERE and not isinstance(t, DeviceTensor) for t in tensors):
            raise RulesError(
                f"{func}: a tensor of the device was made where nobody watches; its data are lost"
            )
        others = [t for t in tensors if not isinstance(t, DeviceTensor)]
        if name in _PRODUCTS and not tensors[0].is_floating_point():
            raise RulesError(f"{func}: no product of integers on the device")
        if not others or name in _COPIES:
            return
        shapes = [f"{'device' if isinstance(t, DeviceTensor) else 'cpu'} {list(t.shape)}" for t in tensors]
        mixed = RulesError(f"{func}: tensors of two devices ({', '.join(shapes)})")
        if name in _INDEXING:
            values = [args[2]] if len(args) > 2 else []
            if not isinstance(args[0], DeviceTensor):
                raise mixed
            if any(v.dim() and not isinstance(v, DeviceTensor) for v in values):
                raise mixed
            return
        if any(t.dim() for t in others) or not _joins_scalars(func):
            raise mixed
        changed = [args[n] for n in _written(func) if n < len(args)] + [kwargs.get("out")]
        if any(isinstance(t, Tensor) and not isinstance(t, DeviceTensor) for t in changed):
            raise mixed

    def _generators(self, func: Any, args: Any, kwargs: dict[str, Any], here: bool) -> None:
        for given in (*kwargs.values(), *args):
            if isinstance(given, _RealGenerator) and (given._cdata in DeviceGenerator.known) != here:
                raise RulesError(f"{func}: a generator of another device")


_device: Device | None = None


@contextmanager
def simulated(
    monkeypatch: pytest.MonkeyPatch, watch: Watch, lacks: frozenset[str] = frozenset()
) -> Iterator[torch.device]:
    """The device, while this lasts; in the threads of pools too, for a mode belongs to one thread."""
    global _device
    device = Device(watch, lacks)
    submit = ThreadPoolExecutor.submit

    def within(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with device:
            return run(*args, **kwargs)

    def tensor(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
        made = _real_tensor(data, *args, **options)
        return made if device is None else made.to(device)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        made = data if isinstance(data, Tensor) else _real_as_tensor(data, dtype=dtype)
        return made.to(device=device, dtype=dtype)

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", lambda pool, *a, **k: submit(pool, within, *a, **k))
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(torch, "as_tensor", as_tensor)
        patch.setattr(torch, "Generator", DeviceGenerator)
        _device = device
        try:
            with device:
                yield WHERE
        finally:
            _device = None
            DeviceGenerator.known.clear()


def on_cpu(t: Tensor) -> Tensor:
    """The numbers themselves, uncounted."""
    return t.value if isinstance(t, DeviceTensor) else t.cpu()
