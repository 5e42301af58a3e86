"""The loop engine: one client at a time with Opacus per-sample gradients. Slow, plain: the oracle."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine.base import Engine
from fedpriv.engine.data import ClientData
from fedpriv.engine.dropout import NamedDropout, name_dropouts, sample_names
from fedpriv.engine.layout import Layout
from fedpriv.engine.work import Rows, Trained, Work


class LoopEngine(Engine):
    name = "loop"

    def __init__(
        self,
        network: nn.Module,
        layout: Layout,
        buffers: Layout,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ):
        super().__init__(network, layout, buffers, device, threads)
        if threads:
            torch.set_num_threads(threads)
        self.network = copy.deepcopy(network).to(self.device)
        name_dropouts(self.network)
        no_inplace(self.network)

    def _load(self, row: Tensor, buffers: Tensor) -> nn.Module:
        network = copy.deepcopy(self.network).to(row.dtype)
        self.dropouts = [m for m in network.modules() if isinstance(m, NamedDropout)]
        self.layout.write(row, network)
        self.buffers.write(buffers, network)
        return network

    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        return [slice(place, place + 1) for place in range(len(work.clients))]

    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        loss = torch.zeros(len(work.clients), device=self.device)
        for rows in self.groups(work, data) if groups is None else groups:
            for place in torch.arange(len(work.clients))[rows].tolist():
                loss[place] = self._client(work, data, place)
        return Trained(loss)

    def _client(self, work: Work, data: ClientData, position: int) -> float:
        row, own = work.rows[position], data.owned[work.clients[position]]
        network = self._load(row, work.buffers[position])
        plan = work.plan.rows(slice(position, position + 1))
        all_own, all_shared = int(plan.size.sum()), int((plan.taken - plan.size).sum())
        velocity = torch.zeros_like(row)
        sent, here = self.layout.sent, slice(position, position + 1)
        total, seen = 0.0, 0
        for step, lr in enumerate(work.lr):
            if not work.plan.active[position, step]:
                continue
            size, taken = int(plan.size[0, step]), int(plan.taken[0, step])
            samples = own[plan.index[0, step, :taken].to(self.device)]
            x, y = data.take(samples)
            self.layout.write(row, network)
            for dropout in self.dropouts:
                dropout.name(work.source, sample_names(work.clients[here], samples.cpu()[None])[0], step)
            if work.measured is not None:
                gradient, loss = self._weighted(network, x, y, size, all_own, all_shared)
                work.measured[position] += gradient
                total, seen = total + loss, seen + size
                continue
            if work.private:
                gradient, loss, public = self._clipped_sum(network, x, y, work.private.clip_norm, size)
                if work.private.noise:
                    z = work.private.noise.normals(work.clients[here], row[None], step)[0]
                    gradient = gradient + work.private.noise_std[position] * z
                gradient = gradient / work.private.lot + public
            else:
                gradient, loss = self._weighted(network, x, y, size, size, taken - size)
            total, seen = total + loss, seen + size
            gradient = gradient + work.weight_decay * row
            if work.correction:
                gradient[:sent] += work.correction(row[None, :sent], here)[0]
            velocity = work.momentum * velocity + gradient
            row[:sent] -= lr * velocity[:sent]
            row[sent:] -= (lr if work.home_lr is None else work.home_lr) * velocity[sent:]
            if work.after_step:
                work.after_step(row[None, :sent], here)
        work.buffers[position] = self.buffers.flatten(network)
        return total / seen if seen else float("nan")

    def _weighted(
        self, network: nn.Module, x: Tensor, y: Tensor, size: int, own: int, shared: int
    ) -> tuple[Tensor, float]:
        """The gradient of (sum of the first `size` losses) / own + (sum of the others) / shared; and the sum
        of the first `size` losses."""
        network.train()
        losses = F.cross_entropy(network(x), y, reduction="none")
        loss = losses[:size].sum() / max(1, own) + losses[size:].sum() / max(1, shared)
        named = dict(network.named_parameters())
        grads = torch.autograd.grad(loss, [named[e.name] for e in self.layout.entries])
        return torch.cat([g.reshape(-1) for g in grads]), float(losses[:size].detach().sum())

    def _clipped_sum(
        self, network: nn.Module, x: Tensor, y: Tensor, clip: float, size: int
    ) -> tuple[Tensor, float, Tensor]:
        """The clipped sum of the first `size` gradients, their losses' sum, and the mean of the others."""
        if not len(x):
            nothing = torch.zeros(self.layout.total, device=x.device, dtype=x.dtype)
            return nothing, 0.0, nothing
        per_sample, losses = self.per_sample(network, x, y)
        norms = per_sample.norm(dim=1, keepdim=True)
        per_sample = per_sample.masked_fill(~norms.isfinite(), 0)  # leaving it out is the only bound
        norms = norms.nan_to_num(nan=0, posinf=0)
        clipped = (per_sample * (clip / norms.clamp(min=clip)))[:size].sum(0)
        return clipped, float(losses[:size].sum()), per_sample[size:].sum(0) / max(1, len(x) - size)

    def per_sample(self, network: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Opacus's gradients of every sample, [B, P], and the losses [B]."""
        network.train()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*non-full backward hook.*|.*Full backward hook.*")
            from opacus.grad_sample import GradSampleModule

            hooked = GradSampleModule(network, loss_reduction="sum", strict=False)
            losses = F.cross_entropy(hooked(x), y, reduction="none")
            losses.sum().backward()
        named: dict[str, Any] = dict(network.named_parameters())
        grads = [named[e.name].grad_sample.reshape(len(x), -1) for e in self.layout.entries]
        result = torch.cat(grads, 1).detach()
        hooked.to_standard_module()
        for parameter in named.values():
            parameter.grad = None
        return result, losses.detach()

    @torch.no_grad()
    def predict(
        self, rows: Tensor, buffers: Tensor, index: Tensor, data: ClientData, alike: bool = False
    ) -> tuple[Tensor, Tensor]:
        losses, corrects = [], []
        for row, stats, samples in zip(rows, buffers, index, strict=True):
            network = self._load(row, stats).eval()
            x, y = data.take(samples)
            logits = network(x)
            losses.append(F.cross_entropy(logits, y, reduction="none"))
            corrects.append(logits.argmax(1) == y)
        return torch.stack(losses), torch.stack(corrects)


def no_inplace(network: nn.Module) -> None:
    """Opacus's hooks do not allow activations in place."""
    for module in network.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
