"""What a reproduction costs: a step of every kind of training is measured, and its operations are counted.

A kind is a network and a shape of samples. A few steps of it, forward and backward on random numbers, are
timed on one core of this machine, in seconds of the core's work, whoever else is at it. A run sees as many
samples as its rounds, clients and local steps say, and tests as often as it is asked to. That needs no data
and writes nothing. What the clipping of single samples adds is not in it: it tells minutes from hours, not
more. For a GPU nothing can be measured here: its hours are the counted operations at GPU_RATE.
"""

import copy
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.models.parts import Network
from fedpriv.parts.making import make

GPU_RATE = 5e12  # operations a second that a card of some 20 TFLOP/s sustains on networks like these
ENOUGH = 1e10  # operations of a step that is timed, and its largest batch
LARGEST = 1024
MOST_NETWORKS = 500  # personal networks that are tried on the whole test set
# Shape of a sample, classes and vocabulary of every data set, for those that are not here as well.
SAMPLES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "digits": ((1, 8, 8), 10, 0),
    "mnist": ((1, 28, 28), 10, 0),
    "fmnist": ((1, 28, 28), 10, 0),
    "emnist": ((1, 28, 28), 10, 0),
    "cifar10": ((3, 32, 32), 10, 0),
    "cifar100": ((3, 32, 32), 100, 0),
    "svhn": ((3, 32, 32), 10, 0),
    "chmnist": ((3, 150, 150), 8, 0),
    "covtype": ((54,), 7, 0),
    "purchase100": ((600,), 100, 0),
    "imdb": ((100,), 2, 5002),
    "features": ((512,), 100, 0),
}
UNKNOWN = SAMPLES["cifar10"]  # what stands for data of one's own
COUNTS = (50_000, 10_000)  # where a data set does not say: the features of CIFAR


@dataclass(frozen=True)
class Step:
    """Forward and backward of one sample, among others."""

    seconds: float
    operations: float


@dataclass(frozen=True)
class Cost:
    """Of runs, one after the other."""

    runs: int = 0
    seconds: float = 0.0  # on one core of this machine
    operations: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.runs + other.runs, self.seconds + other.seconds, self.operations + other.operations)

    @property
    def gpu_seconds(self) -> float:
        return self.operations / GPU_RATE


class Steps:
    """Measures each kind of step once."""

    def __init__(self) -> None:
        self.measured: dict[tuple[Any, ...], Step] = {}

    def cost(self, config: DictConfig) -> Cost:
        """Of one run."""
        step, number = self.step(config), samples_of(config)
        return Cost(1, step.seconds * number, step.operations * number)

    def step(self, config: DictConfig) -> Step:
        name, _ = _dataset(config)
        kind = (
            name,
            str(OmegaConf.to_container(config.model, resolve=True)),
            str(config.transform.get("_target_")),
        )
        if kind not in self.measured:
            self.measured[kind] = measured_step(config)
        return self.measured[kind]


def total(configs: Iterable[DictConfig], steps: Steps) -> Cost:
    return sum((steps.cost(config) for config in configs), start=Cost())


def samples_of(config: DictConfig) -> float:
    """Samples that are trained on, in all rounds, and those that are tested, at a third of the work."""
    _, (training, testing) = _dataset(config)
    each = config.partition.get("samples_per_client") or training / config.clients
    seen = config.local_steps * config.batch_size if config.local_steps else each * config.local_epochs
    trained = config.rounds * max(1.0, config.clients * config.sample_rate) * seen
    networks = min(config.clients, MOST_NETWORKS) if _personal(config) else 1
    tested = math.ceil(config.rounds / config.evaluate_every) * networks * testing
    return float(trained * (2 if _shares(config) else 1) + tested / 3)


def _personal(config: DictConfig) -> bool:
    return not str(config.transform.get("_target_")).endswith("identity")


def _shares(config: DictConfig) -> bool:
    """FedPD: every client trains on as many shared samples again."""
    return "fedpd" in str(config.stage.get("_target_"))


def _dataset(config: DictConfig) -> tuple[str, tuple[int, int]]:
    dataset = make(config, "dataset")
    return dataset.name, getattr(dataset, "counts", None) or COUNTS


def measured_step(config: DictConfig) -> Step:
    """The fastest of three steps; a forward pass counts for a third of a step's operations."""
    name, _ = _dataset(config)
    shape, classes, vocabulary = SAMPLES.get(name, UNKNOWN)
    config = copy.deepcopy(config)
    if "pretrained" in config.model:
        config.model.pretrained = False  # its weights cost a download and no time
    facts = {"shape": shape, "classes": classes, "vocabulary": vocabulary}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(make(config, "transform", **facts), make(config, "model", **facts))

        def batch(size: int) -> Tensor:
            return torch.randint(vocabulary, (size, *shape)) if vocabulary else torch.randn(size, *shape)

        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(batch(2))
        operations = 3.0 * counter.get_total_flops() / 2
        size = int(min(LARGEST, max(2, ENOUGH / max(1.0, operations))))
        x, y = batch(size), torch.randint(classes, (size,))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            seconds = min(_timed(network, x, y) for _ in range(3))
        finally:
            torch.set_num_threads(threads)
    return Step(seconds / size, operations)


def _timed(network: nn.Module, x: Tensor, y: Tensor) -> float:
    network.zero_grad()
    began = time.process_time()
    nn.functional.cross_entropy(network(x), y).backward()
    return time.process_time() - began
