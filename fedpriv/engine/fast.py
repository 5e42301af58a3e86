"""The fast engine: chunks of stacked clients, one chunk per worker thread, everything in tensors.

A worker runs all local steps of its chunk with single-threaded kernels: clients are independent, so this
scales better than threads inside a product, keeps a chunk's weights in cache, and makes the numbers
independent of how many cores there are.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine import judging, room
from fedpriv.engine.base import Engine
from fedpriv.engine.chain import Chain
from fedpriv.engine.chunk import Chunk
from fedpriv.engine.data import ClientData
from fedpriv.engine.dropout import sample_names
from fedpriv.engine.fold import Fold
from fedpriv.engine.layout import Layout
from fedpriv.engine.tape import Batch, Cost, StackedNet, Tape, stack
from fedpriv.engine.work import Private, Rows, Trained, Work

_CACHE = 24 << 20  # bytes of weights a chunk may hold on a CPU
_ENOUGH = 16 << 20  # multiplications a step of a group below which threads cost more than they bring
_ENOUGH_ELSEWHERE = 4 << 30  # the same for devices
_PLENTY = 6  # times that, and more clients in a group bring nothing: threads seldom wait for each other
_SHARED, _GROUPS = 2, 12  # groups come in twos; and how many there are where there is much work
_ACTIVATIONS = 96 << 20  # bytes of activations a chunk may hold; with more, each step asks for new pages
_EVALUATION = 64 << 20  # bytes of activations a worker may hold when only predicting
_UNSEEN = 1 << 16  # numbers a sample is taken to need before any training
_PACKED = 1 << 15  # multiplications a sample from which on padding costs more than a call for each client
_TOGETHER = 32  # clients that share one product of the first layer when predicting


T = TypeVar("T")
Fetched = tuple[Tensor, Tensor, Tensor | None]  # a step's samples, labels, and where they stand if packed
AddNoise = Callable[[Tensor, Tensor, int], object]  # (target, scale of each row, step)


def _begin() -> None:
    """What holds in a worker thread; torch keeps both for each thread by itself."""
    # Saturated units give gradients below 1e-38, with which a CPU computes several times slower.
    torch.set_flush_denormal(True)
    # Else every small product of a worker wakes threads of its own, and two workers are slower than one.
    torch.set_num_threads(1)


def _divided(count: int, parts: int) -> list[slice]:
    """0 to `count` in at most so many parts of about the same size, none of them empty."""
    parts = min(parts, count)
    return [slice(count * n // parts, count * (n + 1) // parts) for n in range(parts)]


class FastEngine(Engine):
    name = "fast"

    def __init__(
        self,
        network: nn.Module,
        layout: Layout,
        buffers: Layout,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ):
        super().__init__(network, layout, buffers, device, threads)
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        self._nets: SimpleQueue[StackedNet] = SimpleQueue()
        for _ in range(self.workers):
            net = stack(network.to(self.device))
            self._nets.put(net)
        self._folds = Fold.of(net, layout) is not None
        self._pool = ThreadPoolExecutor(self.workers, initializer=_begin)
        self._cost: Cost | None = None
        self._network = network
        self._chain: Chain | Literal[False] | None = None  # None: the samples' shape is not known yet

    def _each(self, jobs: Iterable[Any], run: Callable[..., None], together: bool = True) -> None:
        """Run every job on a worker with a network of its own, or one after another."""

        def one(job: Any) -> None:
            net = self._nets.get()
            try:
                run(net, *job)
            finally:
                self._nets.put(net)

        if together:
            list(self._pool.map(one, jobs))
        else:
            for job in jobs:
                self._pool.submit(one, job).result()

    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        clients = len(work.clients)
        if chain := self._chain_for(work, data):
            together = max(chain.together(work), -(-clients // _GROUPS))
        else:
            together = max(1, self._together(work, data))
        count = -(-clients // together)
        if count > 1:  # so that two workers have as much to do
            count = min(clients, -(-count // _SHARED) * _SHARED)
        steps = work.plan.active.sum(1)
        if bool((steps == steps[0]).all()):
            return [*_divided(clients, count)]
        # Clients with most steps come first in a group, so that the others can leave when they are done. They
        # are dealt out in turn, so that every group has some with many steps.
        order = steps.argsort(descending=True, stable=True)
        return [order[n::count] for n in range(count)]

    def _together(self, work: Work, data: ClientData) -> int:
        """Weights in cache, activations within bounds, and work for several workers if there is enough."""
        clients, width, on_cpu = len(work.clients), work.plan.index.shape[2], self.device.type == "cpu"
        cost, size = self._cost_of(work, data), work.rows.element_size()
        floats, products = max(1, width * cost.floats), width * cost.products
        if on_cpu:
            fitting = min(_CACHE // (size * self.layout.total), _ACTIVATIONS // (size * floats))
        else:
            fitting = room.for_clients(self.device, self.layout.total, floats, size)
        fair, enough = clients, _ENOUGH if on_cpu else _ENOUGH_ELSEWHERE
        if clients * products >= _SHARED * enough:
            fair = max(min(_PLENTY * enough // products, -(-clients // _SHARED)), -(-clients // _GROUPS))
        return min(fitting, fair)

    def _chained(self, data: ClientData) -> Chain | None:
        """The network as a chain, if that is what it is."""
        if self._chain is None:
            chained = self.device.type == "cpu" and data.x.is_floating_point()
            shape = data.x.shape[1:]
            found = Chain.of(self._network, self.layout, self.buffers, shape) if chained else None
            self._chain = found or False
        return self._chain or None

    def _chain_for(self, work: Work, data: ClientData) -> Chain | None:
        """The same, if there is enough to do."""
        chain = self._chained(data)
        return chain if chain and chain.takes(work, data) else None

    def _cost_of(self, work: Work, data: ClientData) -> Cost:
        """What one sample costs, seen once on one sample of one client."""
        if self._cost is None:
            weights = self.layout.views(work.rows[:1])
            buffers = self.buffers.views(work.buffers[:1].clone())
            x, y = data.take(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
            costs: list[Cost] = []
            mask = torch.ones(1, 1, device=self.device, dtype=work.rows.dtype)

            def look(net: StackedNet) -> None:
                for dropout in net.dropouts:
                    dropout.name(work.source, torch.zeros(1, dtype=torch.int64, device=self.device), 0)
                names = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
                costs.append(net.tape(weights, buffers, Batch(x, y, mask, [1], None, names)).cost())

            self._each([()], look, together=False)
            self._cost = costs[0]
        return self._cost

    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        loss = torch.zeros(len(work.clients), device=self.device)
        groups = self.groups(work, data) if groups is None else groups
        packs = self._cost_of(work, data).products >= _PACKED and self.device.type == "cpu"
        if chain := self._chain_for(work, data):
            list(self._pool.map(lambda rows: chain.train(work, data, rows, loss), groups))
            return Trained(loss)
        alone = len(groups) == 1  # then another worker may draw noise and take samples ahead
        self._each(
            [(rows,) for rows in groups],
            lambda net, rows: self._train_chunk(net, work, data, rows, loss, packs, ahead=alone),
            together=not alone,
        )
        return Trained(loss)

    def _ahead(self, make: Callable[[int], T], steps: int, ahead: bool) -> Callable[[int], T]:
        """What `make` gives for each step in turn; with a worker idle, made one step ahead."""
        if not ahead or self.workers == 1:
            return make
        waiting = {0: self._pool.submit(make, 0)}

        def get(step: int) -> T:
            if step + 1 < steps:
                waiting[step + 1] = self._pool.submit(make, step + 1)
            return waiting.pop(step).result()

        return get

    def _noise(self, work: Work, chunk: Chunk, steps: int, ahead: bool) -> AddNoise:
        """How a step's noise is added: straight into its target, or from a draw made one step ahead."""
        if work.private is None or work.private.noise is None:
            return lambda target, scale, step: None
        noise, who = work.private.noise, chunk.who
        if self.device.type != "cpu":
            return room.Drawn(noise, who, chunk.rows, steps).add
        if not ahead or self.workers == 1:
            return lambda target, scale, step: noise.add_normals_(target, scale, who[: len(target)], step)
        draw = self._ahead(partial(noise.normals, who, chunk.rows), steps, ahead)
        # A product and a sum, each rounded, as above; addcmul_ would round once.
        return lambda target, scale, step: target.add_(
            draw(step)[: len(target)].mul_(scale[:, None].to(target.dtype))
        )

    @torch.no_grad()
    def _train_chunk(
        self,
        net: StackedNet,
        work: Work,
        data: ClientData,
        chosen: Rows,
        loss: Tensor,
        packs: bool,
        ahead: bool,
    ) -> None:
        counts = work.plan.taken[chosen].T.tolist()  # [T][C]
        staying = work.plan.active[chosen].sum(0).tolist()  # [T]
        chunk = everyone = Chunk.of(work, data, chosen)
        weights, buffers = self.layout.views(chunk.rows), self.buffers.views(chunk.statistics)
        total = chunk.rows.new_zeros(len(chunk.rows))
        steps = sum(map(bool, staying))  # a client's idle steps come last
        add_noise = self._noise(work, chunk, steps, ahead)

        packs = packs and net.packs

        def fetch(step: int) -> Fetched:
            left = staying[step] if isinstance(chosen, Tensor) else len(everyone.rows)
            count = counts[step][:left]
            samples = everyone.samples[:left, step, : max(count)]  # [C, B]
            if not packs or min(count) == max(count):
                return *data.take(samples), None
            where = everyone.masks[:left, step, : max(count)].flatten().nonzero()[:, 0]
            return *data.take(samples.flatten()[where]), where

        take = self._ahead(fetch, steps, ahead)
        for step in range(steps):
            if isinstance(chosen, Tensor) and staying[step] < len(chunk.rows):
                chunk = chunk.first(staying[step])
                weights, buffers = self.layout.views(chunk.rows), self.buffers.views(chunk.statistics)
            count, tape, factor = counts[step][: len(chunk.rows)], None, chunk.active
            fetched = take(step)
            if width := max(count):
                tape, factor = self._taped(net, weights, buffers, work, chunk, step, count, fetched)
                total[: len(chunk.rows)] += (tape.losses * chunk.owns[:, step, :width]).sum(1)
            if chunk.measured is not None:
                if tape is not None:
                    tape.add(self.layout.views(chunk.measured), factor, 1.0)
                continue
            lr = work.lr[step]
            if work.plain:
                if tape is not None:
                    tape.add(weights, factor, -lr)
                if work.private:
                    scale = -lr / work.private.lot * work.private.noise_std[chunk.here]
                    add_noise(chunk.rows, scale * chunk.active[:, step], step)
            else:
                gradient = torch.zeros_like(chunk.rows)
                if tape is not None:
                    tape.add(self.layout.views(gradient), factor, 1.0)
                if work.private:
                    add_noise(gradient, work.private.noise_std[chunk.here] / work.private.lot, step)
                chunk.move(work, gradient, step, self.layout.sent)
            if work.after_step:
                work.after_step(chunk.rows[:, : self.layout.sent], chunk.here)
        everyone.write(work)
        every = everyone.sizes.sum(1)
        mean = (total / every.clamp(min=1)).nan_to_num(nan=torch.inf)
        loss[everyone.here] = torch.where(every > 0, mean, torch.nan).to(loss.dtype)

    def _taped(
        self,
        net: StackedNet,
        weights: dict[str, Tensor],
        buffers: dict[str, Tensor],
        work: Work,
        chunk: Chunk,
        step: int,
        count: list[int],
        fetched: Fetched,
    ) -> tuple[Tape, Tensor]:
        """One pass of a step's batches, and how much each sample's gradient counts, [C, B]."""
        x, y, where = fetched
        sizes, shared, width = chunk.sizes, chunk.shared, max(count)
        mask, own = chunk.masks[:, step, :width], chunk.owns[:, step, :width]  # [C, B]
        names = None
        if net.dropouts:
            names = sample_names(chunk.who, chunk.samples[:, step, :width])  # [C, B]
            for dropout in net.dropouts:
                dropout.name(work.source, names.flatten() if where is None else names.flatten()[where], step)
        seen = sizes.sum(1) if chunk.measured is not None else sizes[:, step]  # [C]
        factor = own / seen.clamp(min=1)[:, None]
        weight = None
        if shared is not None and not work.private:
            others = shared.sum(1) if chunk.measured is not None else shared[:, step]
            weight, factor = factor + (mask - own) / others.clamp(min=1)[:, None], mask
        with torch.enable_grad():
            tape = net.tape(weights, buffers, Batch(x, y, mask, count, weight, names, where))
        if not work.private:
            return tape, factor
        factor, sound = self._clipped(tape, own, work.private)
        if shared is not None:  # not clipped, for they are no secret
            factor = factor + (mask - own) * sound / shared[:, step, None].clamp(min=1)
        return tape, factor

    def _clipped(self, tape: Tape, own: Tensor, private: Private) -> tuple[Tensor, Tensor]:
        """What is left of each own sample's gradient, and whether it is a number at all, [C, B] both."""
        norms = tape.square_norms().sqrt()
        sound = norms.isfinite()
        # A sample whose gradient overflowed is left out, for nothing else bounds it. A CPU first asks whether
        # there is one; another device would have to wait for the answer.
        if self.device.type != "cpu" or not bool(sound.all()):
            tape.drop(~sound)
            norms = norms.masked_fill(~sound, torch.inf)
        clip = private.clip_norm
        return own * clip / norms.clamp(min=clip) / private.lot, sound

    @torch.no_grad()
    def predict(
        self, rows: Tensor, buffers: Tensor, index: Tensor, data: ClientData, alike: bool = False
    ) -> tuple[Tensor, Tensor]:
        clients, count = index.shape
        loss = torch.zeros(clients, count, device=self.device, dtype=rows.dtype)
        correct = torch.zeros(clients, count, device=self.device, dtype=torch.bool)
        chain, folds = self._chained(data), alike and self._folds
        if chain and judging.judges(chain, rows, count, data) and (judging.scaled_alike(chain) or not folds):

            def judge(some: slice, those: slice) -> None:
                seen = index[:1, those] if alike else index[some, those]
                loss[some, those], correct[some, those] = judging.judge(chain, rows[some], seen, data, alike)

            # Samples are divided where the first layer is the same for all clients, else clients.
            parts = (1, _GROUPS) if alike else (_GROUPS, 1)
            (by_client, by_sample) = (_divided(n, p) for n, p in zip((clients, count), parts, strict=True))
            jobs = [(some, those) for some in by_client for those in by_sample]
            list(self._pool.map(lambda job: judge(*job), jobs))
            return loss, correct
        size, cost = rows.element_size(), self._cost.floats if self._cost else _UNSEEN
        if self.device.type == "cpu":
            fitting = _TOGETHER if alike and self._folds else _CACHE // (size * self.layout.total)
            at_once = max(16, min(4096, _EVALUATION // (size * cost)))
        else:
            fitting, at_once = clients, room.for_samples(self.device, cost, size)
        together = max(1, min(fitting, clients, at_once))
        block = max(1, at_once // together)

        def run(net: StackedNet, a: int, b: int, left: int, right: int) -> None:
            weights, stats = self.layout.views(rows[a:b]), self.buffers.views(buffers[a:b])
            if alike:
                x, y = data.take(index[0, left:right])
                y = y.expand(b - a, -1)
            else:
                x, y = data.take(index[a:b, left:right])
            if alike and (fold := Fold.of(net, self.layout)):
                logits = fold.logits(weights, stats, x)
            else:
                logits = net.logits(weights, stats, x.expand(b - a, *x.shape) if alike else x)
            loss[a:b, left:right] = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(
                y.shape
            )
            correct[a:b, left:right] = logits.argmax(2) == y

        self._each(
            [
                (a, min(a + together, clients), left, min(left + block, count))
                for a in range(0, clients, together)
                for left in range(0, count, block)
            ],
            run,
        )
        return loss, correct
