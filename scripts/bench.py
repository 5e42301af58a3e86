"""How fast the engine is, as ratios measured in one process: `make bench`.

DP-SGD: the same private work by per-client Opacus (hooks, its optimizer, a model a client) and by the fast
engine, and the fast engine's plain step. Central DP: a whole round, without evaluation, against a plain loop
over clients in PyTorch that trains, subtracts, clips and adds up, and against the training within the round.
Noise: against torch's own generator, on one core. Rounds of what is compared take turns and the fastest of
each counts, so that a busy moment hits neither alone. Data are random pixels.
"""

import argparse
import copy
import json
import resource
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

import fedpriv
from fedpriv.datasets.base import Data
from fedpriv.datasets.digits import Digits
from fedpriv.engine import batches
from fedpriv.engine.base import cores
from fedpriv.engine.data import ClientData
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Private, Work
from fedpriv.models import cnn, linear, mlp
from fedpriv.models.parts import Network
from fedpriv.randomness.source import Source

Timed = Callable[[], float]  # does its work and says how many seconds that took

DPSGD = {
    # name: model, clients, samples a client, batch, steps; clients and steps of the (slow) Opacus loop; goals
    "mlp 784-600-100-10, batch 64": (mlp.mlp, 100, 600, 64, 10, 2, 5, 60, 1.6),
    "logistic regression, batch 8": (linear.linear, 40, 1200, 8, 100, 10, 20, 25, 2.0),
    "PFA's cnn, batch 8": (cnn.pfa_cnn, 40, 1200, 8, 20, 10, 10, 14, 1.8),
}
CENTRAL = {
    # name: model, clients, batch, steps; clients of the loop; goal of a round against its training
    "mlp 784-600-100-10, 100 clients": ("mlp", 100, 64, 10, 10, 1.15),
    "logistic regression, 1000 clients": ("linear", 1000, 8, 10, 50, None),
}
NUMBERS, OFTEN = 1 << 20, 30
REST = 0.3  # seconds before each: threads of kernels spin on for a while after their work, on others' cores
SOURCE = Source(bytes(32))


class Pixels(Digits):
    """Random pictures of 28x28 pixels, as many as MNIST has."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = (60_000, 10_000)

    def read(self, data_dir: Path) -> Data:
        return pixels(60_000, 10_000)


def pixels(train: int, test: int) -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (train + test, 1, 28, 28), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, 10, (train + test,), generator=draw)
    return Data("pixels", x[:train], y[:train], x[train:], y[train:], 10, (0.5,), (0.5,))


class Bench:
    def __init__(self, repeat: int, busy: bool):
        self.repeat, self.cores = repeat, 1 if busy else cores()
        self.clock = time.process_time if busy else time.perf_counter

    def timed(self, work: Callable[[], object], units: float = 1.0, threads: int = 1) -> Timed:
        """Seconds a unit; with several threads only where kernels may use them themselves."""

        def run() -> float:
            time.sleep(REST)
            torch.set_num_threads(threads)
            began = self.clock()
            work()
            seconds = (self.clock() - began) / units
            torch.set_num_threads(1)
            return seconds

        return run

    def best(self, runs: dict[str, Timed]) -> dict[str, float]:
        """Each once to warm up, then by turns; the fastest of each."""
        for run in runs.values():
            run()
        rounds = [{name: run() for name, run in runs.items()} for _ in range(self.repeat)]
        return {name: min(r[name] for r in rounds) for name in runs}

    # -- noise

    def noise(self) -> dict[str, float]:
        target, scale = torch.zeros(1, NUMBERS), torch.ones(1)

        def often(draw: Callable[[], object]) -> Timed:
            return self.timed(lambda: [draw() for _ in range(OFTEN)], OFTEN * NUMBERS / 1e9)

        return self.best({
            "torch": often(target.normal_),
            "secure": often(lambda: SOURCE.add_normals_(target, scale, [0])),
        })  # fmt: skip

    # -- DP-SGD

    def dpsgd(self, build, clients, samples, batch, steps, few, short) -> dict[str, float]:
        torch.manual_seed(0)
        network = Network(nn.Identity(), build((1, 28, 28), 10))
        parts = np.split(np.arange(clients * samples), clients)
        data = ClientData.of(pixels(clients * samples, 1), "train", parts, "cpu", torch.float32)
        rates, counts = torch.full((clients,), 1 / -(-samples // batch)), torch.full((clients,), steps)
        private = batches.poisson(data.size, rates, counts, data.owned, SOURCE)
        plain = batches.shuffled(data.size, batch, counts, torch.arange(clients), SOURCE)
        dp = Private(1.0, torch.ones(clients), float(batch), SOURCE)
        return self.best({
            "opacus": self._opacus(network, data, private, batch, few, short),
            "dp": self._fast(network, data, private, dp),
            "plain": self._fast(network, data, plain, None),
        })  # fmt: skip

    def _fast(self, network: nn.Module, data: ClientData, plan: batches.Plan, private) -> Timed:
        layout = Layout.of_parameters(network)
        engine = FastEngine(network, layout, Layout.of_statistics(network), threads=self.cores)
        clients, steps = plan.size.shape
        work = Work(
            rows=layout.flatten(network).expand(clients, -1).clone(),
            buffers=torch.zeros(clients, 0),
            clients=torch.arange(clients),
            plan=plan,
            source=SOURCE,
            lr=[0.05] * steps,
            private=private,
        )
        return self.timed(lambda: engine.train(work, data), clients * steps / 1e3)

    def _opacus(self, network, data: ClientData, plan: batches.Plan, batch: int, clients, steps) -> Timed:
        models, optimizers = [], []
        for _ in range(clients):
            model = GradSampleModule(Network(nn.Identity(), copy.deepcopy(network.model)))
            sgd = torch.optim.SGD(model.parameters(), lr=0.05)
            models.append(model)
            optimizers.append(
                DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)
            )

        def train() -> None:
            for client, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                for step in range(steps):
                    size = int(plan.size[client, step])
                    if not size:
                        continue
                    x, y = data.take(data.owned[client, plan.index[client, step, :size]])
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()

        return self.timed(train, clients * steps / 1e3, self.cores)

    # -- central DP

    def central(self, model: str, clients: int, batch: int, steps: int, few: int) -> dict[str, float]:
        run = fedpriv.build(
            "dataset._target_=bench.Pixels", "dp=cdp", f"model={model}", f"clients={clients}",
            f"batch_size={batch}", f"local_steps={steps}", f"threads={self.cores}", "sample_rate=1",
            "rounds=1000", "evaluate_every=1000", "budget=constant", "budget.epsilon=8", "partition=iid",
        )  # fmt: skip
        trainer, spent = run.trainer, [0.0]
        train = trainer.engine.train

        def watched(*work):
            began = self.clock()
            trained = train(*work)
            spent.append(self.clock() - began)
            return trained

        trainer.engine.train = watched
        network, data = nn.Sequential(nn.Flatten(), *self._layers(model)), trainer.train

        def loop() -> None:
            """What one round does, written down plainly: one client after another, and a clipped sum."""
            start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
            total = torch.zeros_like(start)
            for client in range(few):
                nn.utils.vector_to_parameters(start.clone(), network.parameters())
                sgd = torch.optim.SGD(network.parameters(), lr=0.05)
                order = data.owned[client, torch.randperm(int(data.size[client]))].repeat(steps)
                for own in order[: steps * batch].split(batch):
                    x, y = data.take(own)
                    sgd.zero_grad()
                    F.cross_entropy(network(x), y).backward()
                    sgd.step()
                moved = nn.utils.parameters_to_vector(network.parameters()).detach() - start
                total += moved / moved.norm().clamp(min=1.0)
            nn.utils.vector_to_parameters(start, network.parameters())

        seconds = self.best({
            "loop": self.timed(loop, few / clients, self.cores),
            "round": self.timed(trainer.round),
        })  # fmt: skip
        return seconds | {"training": min(spent[2:])}

    @staticmethod
    def _layers(model: str) -> list[nn.Module]:
        if model == "linear":
            return [nn.Linear(784, 10)]
        sizes = (784, 600, 100, 10)
        layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)]
        return [layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]]


def row(name: str, *cells: str | float) -> None:
    """A line of the table: a heading, or figures, of which the ratios have an x."""
    if isinstance(cells[0], str):
        print()
    texts = [c if isinstance(c, str) else f"{c:.3f}" if n < 3 else f"{c:.2f}x" for n, c in enumerate(cells)]
    widths = (9, 9, 10, 13, 6, 13, 6)
    print(f"{name:34}" + "".join(f"{t:>{w}}" for t, w in zip(texts, widths, strict=False)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each, by turns (default 3)")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--busy", action="store_true", help="one thread and its CPU time: for a busy machine")
    parser.add_argument("--json", type=Path, help="write the figures into this file too")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    bench, figures = Bench(arguments.repeat, arguments.busy), {}
    kind = "CPU time of one thread" if arguments.busy else f"{bench.cores} cores"
    print(f"best of {arguments.repeat}, {kind}, torch {torch.__version__}")

    row("noise, ns a number, one core", "torch", "secure", "", "torch/secure", "goal")
    if arguments.only in "noise":
        best = figures["noise"] = bench.noise()
        row("ChaCha and Box-Muller", best["torch"], best["secure"], "", best["torch"] / best["secure"], "3x")

    row("DP-SGD, ms a client and step", "opacus", "dp", "plain", "opacus/dp", "goal", "dp/plain", "goal")
    for name, (*case, faster, dearer) in DPSGD.items():
        if arguments.only in name:
            best = figures[name] = bench.dpsgd(*case)
            times = (best["opacus"], best["dp"], best["plain"])
            row(name, *times, times[0] / times[1], f"{faster}x", times[1] / times[2], f"{dearer}x")

    row("central DP, s a round", "loop", "round", "training", "loop/round", "", "of training", "goal")
    for name, (*case, goal) in CENTRAL.items():
        if arguments.only in name:
            best = figures["central, " + name] = bench.central(*case)
            times = (best["loop"], best["round"], best["training"])
            row(name, *times, times[0] / times[1], "", times[1] / times[2], f"{goal}x" if goal else "")
    peak = figures["peak memory, GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\npeak memory {peak:.2f} GB")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
