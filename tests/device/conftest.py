"""`device`: the simulated one everywhere, and under `-m gpu` a real one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device that runs choose, whatever they ask for, and that watches them."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    watch = Watch()
    place = simulated if request.param == "simulated" else real
    with place(monkeypatch, watch) as where:
        monkeypatch.setattr("fedpriv.building.choose_device", lambda name: where)
        yield Device(where, watch, on_cpu)
