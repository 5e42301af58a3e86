"""What a reproduction costs: a step of every kind of training is measured, and its operations are counted.

A kind is a network, a shape of samples and how clients train: how many, their batches and steps, whether
single samples are clipped. Some steps of it are trained, and some samples judged, by the run's own engine on
random numbers, on one core of this machine, and timed in seconds of the core's work, whoever else is at it.
A run sees as many samples as its rounds, clients and local steps say, and tests as often as it is asked to.
This needs no data and writes nothing. What a round does besides is not in it: messages of whole clients, a
stage before round 0. For a GPU nothing can be measured here: its hours are the operations at GPU_RATE.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.datasets.data import Data
from fedpriv.engine.batches import shuffled
from fedpriv.engine.data import ClientData
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Private, Work
from fedpriv.models.parts import Network
from fedpriv.parts.making import make
from fedpriv.randomness.source import Source

GPU_RATE = 5e12  # operations a second that a card of some 20 TFLOP/s sustains on networks like these
CLIENTS, STEPS = 40, 10  # of a trial, if there are as many, before it gets more steps
ENOUGH, DISTINCT = 1.5e10, 4096  # operations of a trial, with which the engine compiles it; its samples
JUDGES, JUDGED = 32, 1e11  # personal networks that are tried at once; operations of as much training
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
    """Of one sample, among others."""

    seconds: float  # to train on it
    judged: float  # seconds to test one network on it
    operations: float  # forward and backward; forward alone is a third


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
        step, (trained, tested) = self.step(config), samples_of(config)
        seconds = step.seconds * trained + step.judged * tested
        return Cost(1, seconds, step.operations * (trained + tested / 3))

    def step(self, config: DictConfig) -> Step:
        name, _ = _dataset(config)
        kind = (
            name,
            str(OmegaConf.to_container(config.model, resolve=True)),
            str(config.transform.get("_target_")),
            _per_sample(config),
            bool(config.momentum or config.weight_decay),
            _trial(config, 1.0),
        )
        if kind not in self.measured:
            self.measured[kind] = measured_step(config)
        return self.measured[kind]


def total(configs: Iterable[DictConfig], steps: Steps) -> Cost:
    return sum((steps.cost(config) for config in configs), start=Cost())


def samples_of(config: DictConfig) -> tuple[float, float]:
    """Samples that are trained on in all rounds, and those that are tested, by however many networks."""
    _, (training, testing) = _dataset(config)
    trained = config.rounds * _participants(config) * _seen(config, training)
    networks = min(config.clients, MOST_NETWORKS) if _personal(config) else 1
    tested = math.ceil(config.rounds / config.evaluate_every) * networks * testing
    return float(trained * (2 if _shares(config) else 1)), float(tested)


def _personal(config: DictConfig) -> bool:
    return not str(config.transform.get("_target_")).endswith("identity")


def _shares(config: DictConfig) -> bool:
    """FedPD: every client trains on as many shared samples again."""
    return "fedpd" in str(config.stage.get("_target_"))


def _dataset(config: DictConfig) -> tuple[str, tuple[int, int]]:
    dataset = make(config, "dataset")
    return dataset.name, getattr(dataset, "counts", None) or COUNTS


def _participants(config: DictConfig) -> float:
    """Of a round."""
    return float(max(1.0, config.clients * config.sample_rate))


def _seen(config: DictConfig, training: int) -> float:
    """Samples that a client trains on in a round."""
    each = config.partition.get("samples_per_client") or training / config.clients
    return float(config.local_steps * config.batch_size if config.local_steps else each * config.local_epochs)


def _per_sample(config: DictConfig) -> bool:
    return bool(make(config, "dp_variant").facts.per_sample)


def _trial(config: DictConfig, operations: float) -> tuple[int, int, int]:
    """Clients, steps and batch of what is timed: as the run's, as far as there are operations for them."""
    most = int(max(2, ENOUGH / max(1.0, operations)))  # samples
    seen = _seen(config, _dataset(config)[1][0])
    batch = max(1, min(config.batch_size, round(seen), most))
    steps, room = math.ceil(seen / batch), most // batch
    clients = min(CLIENTS, round(_participants(config)), max(1, room // min(STEPS, steps)))
    return clients, min(steps, room // clients), batch


def measured_step(config: DictConfig) -> Step:
    """By the fastest of three trials."""
    name, _ = _dataset(config)
    shape, classes, vocabulary = SAMPLES.get(name, UNKNOWN)
    config = copy.deepcopy(config)
    if "pretrained" in config.model:
        config.model.pretrained = False  # its weights cost a download and no time
    facts = {"shape": shape, "classes": classes, "vocabulary": vocabulary}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(make(config, "transform", **facts), make(config, "model", **facts))

        def samples(size: int) -> Tensor:
            return torch.randint(vocabulary, (size, *shape)) if vocabulary else torch.randn(size, *shape)

        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(samples(2))
        operations = 3.0 * counter.get_total_flops() / 2
        clients, steps, batch = _trial(config, operations)
        size = clients * steps * batch
        distinct = min(size, DISTINCT)
        y = torch.randint(classes, (distinct,))
        data = Data("random", samples(distinct), y, samples(1), y[:1], classes, vocabulary=vocabulary)
    threads = torch.get_num_threads()
    try:
        engine = FastEngine(network, *_layouts(network), threads=1)
        parts = np.split(np.arange(size) % distinct, clients)
        own = ClientData.of(data, "train", parts, "cpu", torch.float32)
        trained = _best(lambda: engine.train(_work(engine, network, own, steps, batch, config), own)) / size
        networks = min(JUDGES, config.clients) if _personal(config) else 1
        tried = math.ceil(JUDGED / max(1e6, operations) / networks)
        index = (torch.arange(tried) % distinct).expand(networks, -1)
        rows, buffers = (layout.flatten(network).repeat(networks, 1) for layout in _layouts(network))
        judged = _best(lambda: engine.predict(rows, buffers, index, own, networks > 1)) / index.numel()
    finally:
        torch.set_num_threads(threads)
    return Step(trained, judged, operations)


def _layouts(network: nn.Module) -> tuple[Layout, Layout]:
    home = {name for name, _ in network.named_parameters() if name.startswith("transform.")}
    return Layout.of_parameters(network, home), Layout.of_statistics(network)


def _work(
    engine: FastEngine, network: nn.Module, data: ClientData, steps: int, batch: int, config: DictConfig
) -> Work:
    """As many steps of every client, from the network as it is."""
    clients, draws = len(data.size), Source(bytes(32))
    plan = shuffled(data.size, batch, torch.full((clients,), steps), torch.arange(clients), draws)
    return Work(
        rows=engine.layout.flatten(network).repeat(clients, 1),
        buffers=engine.buffers.flatten(network).repeat(clients, 1),
        clients=torch.arange(clients),
        plan=plan,
        source=draws,
        lr=[1e-3] * steps,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        private=Private(1.0, torch.ones(clients), float(batch), draws) if _per_sample(config) else None,
    )


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of three; the first time, which compiles, does not count."""
    work()
    taken = []
    for _ in range(3):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)
