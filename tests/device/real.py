"""A real GPU, watched as the simulated device is; torch itself raises where the host waits in steps."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.device import choose_device
from tests.device.watching import Watch


class _Counting(TorchDispatchMode):
    def __init__(self, watch: Watch):
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        seen = torch.utils._pytree.tree_leaves((args, kwargs, result))
        if any(isinstance(t, Tensor) and t.is_cuda for t in seen):
            self.watch.saw(func, args, kwargs, result, lambda t: t.is_cuda)
        return result


@contextmanager
def real(monkeypatch: pytest.MonkeyPatch, watch: Watch) -> Iterator[torch.device]:
    counting, submit = _Counting(watch), ThreadPoolExecutor.submit

    def within(run: Any, *args: Any, **kwargs: Any) -> Any:
        with counting:
            return run(*args, **kwargs)

    def strict(on: bool) -> None:
        torch.cuda.set_sync_debug_mode("error" if on else "default")

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", lambda pool, *a, **k: submit(pool, within, *a, **k))
        watch.strict = strict
        try:
            with counting:
                yield choose_device("cuda")
        finally:
            strict(False)
