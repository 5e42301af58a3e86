"""`device`: the simulated one everywhere, and under `-m gpu` a real one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.device.real import real
from tests.device.simulated import on_cpu, simulated
from tests.device.watching import Watch


@dataclass(frozen=True)
class Device:
    where: torch.device
    watch: Watch
    to_cpu: Callable[[Tensor], Tensor]


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], AbstractContextManager[Device]]:
    """A context inside of which every run is on the device, which watches it."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")

    @contextmanager
    def context(**options: Any) -> Iterator[Device]:
        watch = Watch()
        place = simulated if request.param == "simulated" else real
        with monkeypatch.context() as patch, place(patch, watch, **options) as where:
            patch.setattr("fedpriv.building.choose_device", lambda name: where)
            watch.sees_steps(patch)
            yield Device(where, watch, on_cpu)

    return context
