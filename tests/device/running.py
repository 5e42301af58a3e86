"""One case of the matrix: two rounds on a device, by the parts a real run is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from fedpriv import compose
from fedpriv.building import build
from fedpriv.session import checkpoint
from fedpriv.session.kept_samples import KeptSamples
from tests.device.matrix import ALL, PIXELS, SMALL
from tests.device.watching import Watch

_CONF = Path(__file__).parent / "conf"


@dataclass(frozen=True)
class Ran:
    theta: Tensor
    loss: float
    accuracy: float
    watch: Watch


def config(name: str) -> DictConfig:
    words = dict(word.split("=", 1) for word in f"{SMALL} {ALL[name]}".split())
    return compose(*(f"{key}={value}" for key, value in words.items()), config_dir=_CONF)


def run(name: str, folder: Path, watch: Watch, to_cpu: Callable[[Tensor], Tensor]) -> Ran:
    """Two rounds, with a checkpoint between that another trainer goes on from."""
    cfg = config(name)
    with pytest.MonkeyPatch.context() as patch:
        if name in PIXELS:
            patch.setattr("fedpriv.engine.data._READY", 0)
        made = build(cfg, secret=lambda: bytes(32))
        samples = KeptSamples(cfg.samples_at, made)
        samples.keep(made.trainer)
        watch.kernels = watch.moved = 0
        for number in range(cfg.rounds):
            result = made.trainer.round()
            samples.keep(made.trainer)
            if number == 0:
                checkpoint.save(folder, made.trainer.state())
                state, _ = checkpoint.load(folder)
                assert state is not None
                made.trainer.load(state)
        samples.write(folder)
        assert result.evaluation is not None
        return Ran(
            to_cpu(made.trainer.theta), result.evaluation.loss_whole, result.evaluation.accuracy_global, watch
        )


def same(a: Tensor, b: Tensor, discrete: bool) -> bool:
    """Equal within rounding; where values are drawn from few, all but one in a hundred."""
    if a.dtype != b.dtype or not torch.isfinite(b).all():
        return False
    close = (a - b).abs() <= 2e-5 * (1 + b.abs())
    return bool(close.double().mean() >= 0.99) if discrete else bool(close.all())
