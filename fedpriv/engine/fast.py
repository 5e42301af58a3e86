"""The fast engine: chunks of stacked clients, one chunk per worker thread, everything in tensors.

A worker runs all local steps of its chunk with single-threaded kernels: clients are independent, so this
scales better than threads inside a product, keeps a chunk's weights in cache, and makes the numbers
independent of how many cores there are.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine.layout import Layout
from fedpriv.engine.tape import StackedNet, stack
from fedpriv.engine.work import Samples, Trained, Work

_CACHE = 8 << 20  # bytes of weights a chunk may hold on a CPU
_ACTIVATIONS = 1 << 30  # bytes of activations all workers together may hold
_EVALUATION = 512  # samples a block when only predicting


class FastEngine:
    name = "fast"

    def __init__(
        self,
        network: nn.Module,
        layout: Layout,
        buffers: Layout,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ):
        self.layout, self.buffers, self.device = layout, buffers, torch.device(device)
        on_cpu = self.device.type == "cpu"
        self.workers = (threads or len(os.sched_getaffinity(0))) if on_cpu else 1
        if on_cpu:
            torch.set_num_threads(1)
        self._nets: SimpleQueue[StackedNet] = SimpleQueue()
        for _ in range(self.workers):
            self._nets.put(stack(network.to(self.device)))
        self._pool = ThreadPoolExecutor(self.workers)
        self._floats: int | None = None

    def _each(self, jobs: Iterable[Any], run: Callable[..., None]) -> None:
        """Run every job on a worker with a network of its own."""

        def one(job: Any) -> None:
            net = self._nets.get()
            try:
                run(net, *job)
            finally:
                self._nets.put(net)

        for _ in self._pool.map(one, jobs):
            pass

    def _chunk(self, work: Work, data: Samples, group: int) -> int:
        """Clients per chunk: weights in cache, activations within bounds, work for every worker."""
        clients, width = len(work.clients), work.plan.index.shape[2]
        if self._floats is None:
            self._floats = self._floats_per_sample(work, data)
        limit = _CACHE if self.device.type == "cpu" else 1 << 30
        by_weights = limit // (4 * self.layout.total)
        by_activations = _ACTIVATIONS // (self.workers * 4 * max(1, width * self._floats))
        fair = -(-clients // self.workers)
        chunk = max(1, min(by_weights, by_activations, fair))
        return -(-chunk // group) * group  # noise tiles are not cut

    def _floats_per_sample(self, work: Work, data: Samples) -> int:
        """What one sample keeps alive during a step, seen on one sample of one client."""
        weights, buffers = self.layout.views(work.rows[:1]), self.buffers.views(work.buffers[:1].clone())
        x, y = data.prepare(data.x[:1]), data.y[:1]
        sizes: list[int] = []
        self._each(
            [(torch.ones(1, 1, device=self.device, dtype=work.rows.dtype),)],
            lambda net, mask: sizes.append(net.tape(weights, buffers, x[None], y[None], mask).floats),
        )
        return sizes[0]

    def train(self, work: Work, data: Samples) -> Trained:
        count = len(work.clients)
        loss = torch.zeros(count, device=self.device)
        group = work.noise.shape.rows_per_tile if work.noise else 1
        size = self._chunk(work, data, group)
        jobs = [(first, min(first + size, count)) for first in range(0, count, size)]
        self._each(jobs, lambda net, a, b: self._train_chunk(net, work, data, a, b, loss))
        return Trained(loss)

    @torch.no_grad()
    def _train_chunk(
        self, net: StackedNet, work: Work, data: Samples, first: int, stop: int, loss: Tensor
    ) -> None:
        plan, here = work.plan.rows(first, stop), slice(first, stop)
        # .data: chunks of one buffer change in different threads, so each needs a version counter of its own.
        rows = work.rows.data[first:stop]
        weights, buffers = self.layout.views(rows), self.buffers.views(work.buffers.data[first:stop])
        owned = data.owned[work.clients[first:stop].to(self.device)]  # [c, widest]
        widths = plan.size.amax(0).tolist()
        any_active = plan.active.any(0).tolist()
        index, sizes = plan.index.to(self.device), plan.size.to(self.device)
        active = plan.active.to(self.device, rows.dtype)
        total = torch.zeros(len(rows), device=self.device, dtype=rows.dtype)
        velocity = torch.zeros_like(rows) if work.momentum else None
        for step, width in enumerate(widths):
            if not any_active[step]:
                continue
            tape = None
            if width:
                places = index[:, step, :width]
                samples = owned.gather(1, places)
                mask = torch.arange(width, device=self.device) < sizes[:, step, None]  # [c, B]
                mask = mask.to(rows.dtype)
                with torch.enable_grad():
                    tape = net.tape(weights, buffers, data.prepare(data.x[samples]), data.y[samples], mask)
                total += (tape.losses * mask).sum(1)
                if work.private:
                    clip = work.private.clip_norm
                    norms = tape.square_norms().sqrt()
                    factor = mask * clip / norms.clamp(min=clip) / work.private.lot
                else:
                    factor = mask / sizes[:, step, None].clamp(min=1)
            lr = work.lr[step]
            if work.plain:
                if tape is not None:
                    tape.add(weights, factor, lambda _, lr=lr: -lr)  # type: ignore[misc]
                if work.private and work.noise:
                    scale = -lr / work.private.lot * work.private.noise_std[here] * active[:, step]
                    work.noise.add_(rows, scale, first, work.round, step)
            else:
                gradient = torch.zeros_like(rows)
                if tape is not None:
                    tape.add(self.layout.views(gradient), factor, lambda _: 1.0)
                if work.private and work.noise:
                    scale = work.private.noise_std[here] / work.private.lot
                    work.noise.add_(gradient, scale, first, work.round, step)
                self._general_step(work, rows, gradient, velocity, active[:, step, None], lr, here)
            if work.after_step:
                work.after_step(rows[:, : self.layout.shared], here)
        seen = sizes.sum(1)
        loss[first:stop] = torch.where(seen > 0, total / seen.clamp(min=1), torch.nan)

    def _general_step(
        self,
        work: Work,
        rows: Tensor,
        gradient: Tensor,
        velocity: Tensor | None,
        active: Tensor,
        lr: float,
        here: slice,
    ) -> None:
        """Momentum, weight decay, an algorithm's correction, and a learning rate of its own at home."""
        shared = self.layout.shared
        if work.weight_decay:
            gradient.add_(rows, alpha=work.weight_decay)
        if work.correction:
            gradient[:, :shared] += work.correction(rows[:, :shared], here)
        if velocity is not None:
            velocity.mul_(work.momentum).add_(gradient)
            gradient = velocity
        step = gradient * active
        rows[:, :shared].sub_(step[:, :shared], alpha=lr)
        rows[:, shared:].sub_(step[:, shared:], alpha=lr if work.home_lr is None else work.home_lr)

    @torch.no_grad()
    def predict(
        self, rows: Tensor, buffers: Tensor, index: Tensor, data: Samples
    ) -> tuple[Tensor, Tensor]:
        """Loss and correctness of each client's network on samples `index` [C, N]: two [C, N] tensors."""
        clients, count = index.shape
        loss = torch.zeros(clients, count, device=self.device, dtype=rows.dtype)
        correct = torch.zeros(clients, count, device=self.device, dtype=torch.bool)
        together = max(1, min(_CACHE // (4 * self.layout.total), clients))
        block = max(1, _EVALUATION // together)

        def run(net: StackedNet, a: int, b: int, left: int, right: int) -> None:
            samples = index[a:b, left:right]
            weights, stats = self.layout.views(rows[a:b]), self.buffers.views(buffers[a:b])
            y = data.y[samples]
            logits = net.logits(weights, stats, data.prepare(data.x[samples]))
            loss[a:b, left:right] = F.cross_entropy(
                logits.flatten(0, 1), y.flatten(), reduction="none"
            ).view(y.shape)
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
