"""How fast the engine is, as ratios measured in one process: `make bench`.

Each case does the same private work twice: per-client Opacus (hooks, its own optimizer, one model per client
kept through the round) and the fast engine. The non-private step of the fast engine is the third figure.
Rounds of the two are interleaved and the fastest of each is compared, so a busy moment hits neither alone.
"""

import argparse
import copy
import resource
import time
import warnings
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from fedpriv.engine.noise import NoiseShape, NoiseSource
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from fedpriv.datasets.base import Data
from fedpriv.engine import batches
from fedpriv.engine.data import ClientData
from fedpriv.engine.fast import FastEngine, cores
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Private, Work
from fedpriv.models import cnn, linear, mlp
from fedpriv.models.parts import Network

CASES = {
    # name: model, clients, samples a client, batch, steps; clients and steps of the (slow) Opacus loop; goal
    "mlp 784-600-100-10, batch 64": (mlp.mlp, 100, 600, 64, 10, 2, 5, 25),
    "logistic regression, batch 8": (linear.linear, 40, 1200, 8, 100, 10, 20, 15),
    "PFA's cnn, batch 8": (cnn.pfa_cnn, 40, 1200, 8, 20, 10, 10, 3),
}


class Case:
    def __init__(self, build, clients: int, samples: int, batch: int, steps: int):
        torch.manual_seed(0)
        self.network = Network(nn.Identity(), build((1, 28, 28), 10))
        self.layout = Layout.of_parameters(self.network)
        self.statistics = Layout.of_statistics(self.network)
        x = torch.randint(0, 256, (clients * samples, 1, 28, 28), dtype=torch.uint8)
        y = torch.randint(0, 10, (clients * samples,))
        data = Data("bench", x, y, x[:1], y[:1], 10, (0.5,), (0.5,))
        parts = np.split(np.arange(clients * samples), clients)
        self.samples = ClientData.of(data, "train", parts, "cpu", torch.float32)
        self.clients, self.batch, self.steps = clients, batch, steps
        self.rate = 1 / -(-samples // batch)  # as `ldp` sets it

    def plan(self, private: bool) -> batches.Plan:
        steps, generator = torch.full((self.clients,), self.steps), torch.Generator().manual_seed(0)
        if private:
            rates = torch.full((self.clients,), self.rate)
            return batches.poisson(self.samples.size, rates, steps, generator)
        return batches.shuffled(self.samples.size, self.batch, steps, generator)

    def fast(self, private: bool):
        """A function that trains one round and returns milliseconds per client and step."""
        engine = FastEngine(self.network, self.layout, self.statistics)
        plan = self.plan(private)
        rows = self.layout.flatten(self.network).expand(self.clients, -1).clone()
        shape = NoiseShape(1, self.steps, self.clients, self.layout.total)
        work = Work(
            rows=rows,
            buffers=torch.zeros(self.clients, 0),
            clients=torch.arange(self.clients),
            plan=plan,
            round=0,
            dropout_seed=0,
            lr=[0.05] * self.steps,
            private=Private(1.0, torch.ones(self.clients), float(self.batch)) if private else None,
            noise=NoiseSource(shape, 0) if private else None,
        )
        return lambda: self._time(lambda: engine.train(work, self.samples), self.clients * self.steps)

    def opacus(self, clients: int, steps: int, threads: int):
        """The same on Opacus's usual path, one client after another."""
        plan = self.plan(True)
        models, optimizers = [], []
        for _ in range(clients):
            model = GradSampleModule(Network(nn.Identity(), copy.deepcopy(self.network.model)))
            sgd = torch.optim.SGD(model.parameters(), lr=0.05)
            models.append(model)
            optimizers.append(
                DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=self.batch)
            )

        def train() -> None:
            for client, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                for step in range(steps):
                    size = int(plan.size[client, step])
                    if not size:
                        continue
                    index = self.samples.owned[client, plan.index[client, step, :size]]
                    optimizer.zero_grad()
                    x = self.samples.prepare(self.samples.x[index])
                    F.cross_entropy(model(x), self.samples.y[index]).backward()
                    optimizer.step()

        def timed() -> float:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)  # Opacus may use all cores inside its kernels
            try:
                return self._time(train, clients * steps)
            finally:
                torch.set_num_threads(before)

        return timed

    @staticmethod
    def _time(work, units: int) -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e3 / units


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="interleaved rounds of each (default 3)")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    arguments = parser.parse_args()
    repeat = arguments.repeat
    warnings.filterwarnings("ignore")
    count = cores()
    print(f"milliseconds per client and step, best of {repeat}, {count} cores, torch {torch.__version__}")
    print(f"{'':32}{'opacus':>9}{'fast dp':>9}{'plain':>9}   {'opacus/dp':>10}{'goal':>6}{'dp/plain':>10}")
    for name, (build, clients, samples, batch, steps, few, short, goal) in CASES.items():
        if arguments.only not in name:
            continue
        case = Case(partial(build), clients, samples, batch, steps)
        runs = {
            "opacus": case.opacus(few, short, count),
            "dp": case.fast(private=True),
            "plain": case.fast(private=False),
        }
        for run in runs.values():
            run()
        rounds = [{key: run() for key, run in runs.items()} for _ in range(repeat)]
        best = {key: min(r[key] for r in rounds) for key in runs}
        ratio, cost = best["opacus"] / best["dp"], best["dp"] / best["plain"]
        print(
            f"{name:32}{best['opacus']:9.3f}{best['dp']:9.3f}{best['plain']:9.3f}   "
            f"{ratio:9.1f}x{goal:5d}x{cost:9.2f}x"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
