"""A network for C clients at once, and the tape of one pass from which clipped gradient sums are read."""

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine.rules import RULES, Stacked, stacked_layers

Alpha = Callable[[str], float]  # parameter name -> factor


class Tape(Protocol):
    """One forward and backward pass of C clients on B samples each."""

    losses: Tensor  # [C, B]
    floats: int  # numbers the tape keeps

    def square_norms(self) -> Tensor:
        """Squared gradient norm of every sample over all parameters, [C, B]."""

    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: Alpha) -> None:
        """targets[name] += alpha(name) * sum_b coefficients[:, b] * gradient_b, in place."""


class StackedNet(Protocol):
    """C clients' networks; parameters and norm statistics come as named [C, ...] views."""

    def logits(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        """Outputs [C, B, classes] for inputs [C, B, ...], in evaluation mode."""

    def tape(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor
    ) -> Tape: ...


def _convert(module: nn.Module) -> nn.Module:
    """Replace every layer with weights by its client-batched form; raise where one has none."""
    if type(module) in RULES:
        return RULES[type(module)](module)
    if any(True for _ in module.parameters(recurse=False)):
        raise NotImplementedError(f"{type(module).__name__} has no stacked rule")
    if getattr(module, "inplace", False):
        module.inplace = False  # an in-place activation would overwrite a recorded output
    for name, child in module.named_children():
        setattr(module, name, _convert(child))
    return module


class GhostNet:
    """Client-batched layers with ghost norms: one backward pass, for the layers' outputs only."""

    def __init__(self, network: nn.Module):
        self.network = _convert(copy.deepcopy(network))
        self.layers: dict[str, Stacked] = dict(stacked_layers(self.network))

    def _bind(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], mask: Tensor | None, record: bool
    ) -> None:
        for prefix, layer in self.layers.items():
            layer.bound = {n: weights[f"{prefix}.{n}"] for n in layer.names}
            layer.bound |= {n: buffers[f"{prefix}.{n}"] for n in layer.buffer_names}
            layer.mask, layer.recording, layer.calls = mask, record, []

    @torch.no_grad()
    def logits(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        self._bind(weights, buffers, None, record=False)
        self.network.eval()
        return self.network(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def tape(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor
    ) -> "GhostTape":
        self._bind(weights, buffers, mask, record=True)
        self.network.train()
        outputs = self.network(x.flatten(0, 1))
        losses = F.cross_entropy(outputs, y.flatten(), reduction="none").view(y.shape)
        points = [z for layer in self.layers.values() for _, z in layer.calls]
        grads = list(torch.autograd.grad((losses * mask).sum(), points))
        prepared: dict[str, Any] = {}
        with torch.no_grad():
            for name, layer in self.layers.items():
                own, grads = grads[: len(layer.calls)], grads[len(layer.calls) :]
                prepared[name] = layer.prepare(own)
                layer.calls = []
        return GhostTape(self.layers, prepared, losses.detach())


class GhostTape:
    def __init__(self, layers: dict[str, Stacked], prepared: dict[str, Any], losses: Tensor):
        self.layers, self.prepared, self.losses = layers, prepared, losses
        # Each kept input and gradient has about one more of its size in the autograd graph.
        self.floats = 2 * sum(t.numel() for kept in prepared.values() for t in kept)

    @torch.no_grad()
    def square_norms(self) -> Tensor:
        return sum(
            (layer.square_norms(self.prepared[name]) for name, layer in self.layers.items()),
            start=torch.zeros_like(self.losses),
        )

    @torch.no_grad()
    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: Alpha) -> None:
        for prefix, layer in self.layers.items():
            own = {n: targets[f"{prefix}.{n}"] for n in layer.names}
            layer.add(self.prepared[prefix], own, coefficients, alpha(f"{prefix}.{layer.names[0]}"))


class VmapNet:
    """Any other network: per-sample gradients by nested vmap, one [C, B, ...] tensor per parameter."""

    def __init__(self, network: nn.Module):
        self.network = copy.deepcopy(network)
        if any(b.is_floating_point() for b in self.network.buffers()):
            raise NotImplementedError("layers with running statistics need a stacked rule")

    def _loss(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(self.network, weights, (x[None],))
        loss = F.cross_entropy(outputs, y[None])
        return loss, loss.detach()

    @torch.no_grad()
    def logits(self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        self.network.eval()
        return torch.func.vmap(lambda w, batch: torch.func.functional_call(self.network, w, (batch,)))(
            weights, x
        )

    def tape(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor
    ) -> "VmapTape":
        self.network.train()
        one = torch.func.grad(self._loss, has_aux=True)
        per_client = torch.func.vmap(one, in_dims=(None, 0, 0), randomness="different")
        grads, losses = torch.func.vmap(per_client, randomness="different")(weights, x, y)
        return VmapTape(grads, losses)


class VmapTape:
    def __init__(self, grads: dict[str, Tensor], losses: Tensor):
        self.grads, self.losses = grads, losses
        self.floats = sum(g.numel() for g in grads.values())

    def square_norms(self) -> Tensor:
        return sum(
            (g.flatten(2).square().sum(2) for g in self.grads.values()), start=torch.zeros_like(self.losses)
        )

    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: Alpha) -> None:
        for name, g in self.grads.items():
            total = torch.einsum("cb,cbp->cp", coefficients, g.flatten(2))
            targets[name].add_(total.view(targets[name].shape), alpha=alpha(name))


def stack(network: nn.Module) -> StackedNet:
    """The network for many clients: ghost norms where every layer has a rule, else nested vmap."""
    try:
        return GhostNet(network)
    except NotImplementedError:
        return VmapNet(network)
