"""One case of the matrix: two rounds on a device, by the parts a real run is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from fedpriv import compose
from fedpriv.building import build
from fedpriv.mechanisms.rotation import padded
from fedpriv.session import checkpoint
from fedpriv.session.kept_samples import KeptSamples
from tests.device.matrix import ALL, PIXELS, SMALL, bytes_of_a_round
from tests.device.watching import Watch

_CONF = Path(__file__).parent / "conf"


@dataclass(frozen=True)
class Ran:
    theta: Tensor
    loss: float
    accuracy: float
    moved: list[tuple[int, int]]  # bytes of every round, and how many there may be


def words_of(name: str) -> dict[str, str]:
    words = dict(word.split("=", 1) for word in f"{SMALL} {ALL[name]}".split())
    if words.get("dp", "ldp") != "ldp":
        words.pop("dp_variant.paper_sigma", None)
    return words


@cache
def config(name: str) -> DictConfig:
    return compose(*(f"{key}={value}" for key, value in words_of(name).items()), config_dir=_CONF)


def run(name: str, folder: Path, watch: Watch, to_cpu: Callable[[Tensor], Tensor]) -> Ran:
    """Two rounds, with a checkpoint between them that the second goes on from."""
    cfg, moved = config(name), []
    with pytest.MonkeyPatch.context() as patch:
        if name in PIXELS:
            patch.setattr("fedpriv.engine.data._READY", 0)
        made = build(cfg, secret=lambda: bytes(32))
        trainer, samples = made.trainer, KeptSamples(cfg.samples_at, made)
        samples.keep(trainer)
        for number in range(cfg.rounds):
            before = watch.moved
            result = trainer.round()
            widest, width = int(trainer.train.size.max()), padded(len(trainer.theta))
            plan = int(trainer.setting.steps.max()) * (3 * cfg.batch_size // 2 + 20) * len(result.clients)
            most = bytes_of_a_round(len(result.clients), widest, plan, width, name)
            moved.append((watch.moved - before, most))
            samples.keep(trainer)
            if number == 0:
                checkpoint.save(folder, trainer.state())
                state, _ = checkpoint.load(folder)
                assert state is not None
                trainer.load(state)
        samples.write(folder)
        assert result.evaluation is not None
        whole = result.evaluation
        return Ran(to_cpu(trainer.theta), whole.loss_whole, whole.accuracy_global, moved)


def same(a: Tensor, b: Tensor, discrete: bool) -> bool:
    """Equal within rounding; where values are drawn from few, all but one in a hundred."""
    if a.dtype != b.dtype or not torch.isfinite(b).all():
        return False
    close = (a - b).abs() <= 2e-5 * (1 + b.abs())
    return bool(close.double().mean() >= 0.99) if discrete else bool(close.all())
