"""A network for C clients at once, and the tape of one pass from which clipped gradient sums are read."""

import copy
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine import convolution, norms  # noqa: F401  (they register their rules)
from fedpriv.engine.dropout import NamedDropout, name_dropouts
from fedpriv.engine.rules import RULES, Stacked, stacked_layers
from fedpriv.errors import UserError

Named = dict[str, Tensor]


class Batch(NamedTuple):
    """A step's samples; of client c the first sizes[c] are real, the rest is padding, unless it is packed."""

    x: Tensor  # [C, B, ...]; packed: [N, ...], the real ones alone
    y: Tensor  # [C, B]; packed: [N]
    mask: Tensor  # [C, B], one where real
    sizes: list[int]
    weight: Tensor | None = None  # [C, B], of each sample's loss; needed where batch norm mixes samples
    names: Tensor | None = None  # [C, B], of each sample; needed where there is dropout
    where: Tensor | None = None  # [N], packed: where each sample stands in [C * B]


class Cost(NamedTuple):
    floats: int  # numbers kept alive
    products: int  # multiplications forward


class Tape(Protocol):
    """One forward and backward pass of C clients on B samples each."""

    losses: Tensor  # [C, B]

    def cost(self) -> "Cost":
        """What the pass took, for a tape of one sample."""

    def square_norms(self) -> Tensor:
        """Squared gradient norm of every sample over all parameters, [C, B]."""

    def drop(self, bad: Tensor) -> None:
        """Forget the samples marked in [C, B], so that not even an infinite gradient is left of them."""

    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: float) -> None:
        """targets[name] += alpha * sum_b coefficients[:, b] * gradient_b, in place."""


class StackedNet(Protocol):
    """C clients' networks; parameters and norm statistics come as named [C, ...] views."""

    dropouts: list[NamedDropout]
    packs: bool  # whether a training pass takes packed samples

    def logits(self, weights: Named, buffers: Named, x: Tensor) -> Tensor:
        """Outputs [C, B, classes] for inputs [C, B, ...], in evaluation mode."""

    def tape(self, weights: Named, buffers: Named, batch: Batch) -> Tape:
        """A training pass, forward and backward."""


def _convert(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Replace every layer with weights by its client-batched form, once; raise where one has none."""
    if module in done:
        return done[module]
    if type(module) in RULES:
        done[module] = RULES[type(module)](module)
        return done[module]
    if any(True for _ in module.parameters(recurse=False)):
        raise NotImplementedError(f"{type(module).__name__} has no stacked rule")
    if getattr(module, "inplace", False):
        # An in-place activation would overwrite a recorded output.
        module.inplace = False  # type: ignore[assignment]
    for name, child in module._modules.items():  # not named_children, which skips a second name
        if child is not None:
            module._modules[name] = _convert(child, done)
    done[module] = module
    return module


@torch.no_grad()
def cross_entropy(outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample's loss [N], and the gradient of the weighted sum of losses by the outputs [N, K].

    Inside, classes are the first axis: exponentials and sums run along N samples, not along ten numbers.
    """
    z = outputs.T.clone(memory_format=torch.contiguous_format)  # [K, N]
    z -= z.amax(0)
    chosen = z.gather(0, y[None])
    z.exp_()
    total = z.sum(0)
    losses = total.log() - chosen[0]
    z *= weight / total
    z.scatter_(0, y[None], z.gather(0, y[None]) - weight)
    return losses, z.T


class GhostNet:
    """Client-batched layers with ghost norms: one backward pass, for the layers' outputs only."""

    def __init__(self, network: nn.Module):
        owned = [id(p) for module in network.modules() for p in module.parameters(recurse=False)]
        if len(set(owned)) != len(owned):
            raise NotImplementedError("two layers share a parameter")
        copied = copy.deepcopy(network)
        self.dropouts = name_dropouts(copied)
        self.network = _convert(copied, {})
        self.layers: dict[str, Stacked] = dict(stacked_layers(self.network))
        self.packs = all(layer.packs for layer in self.layers.values())
        self._bound: dict[str, Tensor] | None = None  # the views the layers hold now

    def bind(
        self, weights: Named, buffers: Named, mask: Tensor | None = None, rows: list[int] | None = None
    ) -> None:
        record = mask is not None
        if self.network.training != record:
            self.network.train(record)
        fresh = self._bound is not weights
        for prefix, layer in self.layers.items():
            if fresh:
                layer.bound = {n: weights[f"{prefix}.{n}"] for n in layer.names}
                layer.bound |= {n: buffers[f"{prefix}.{n}"] for n in layer.buffer_names}
            layer.mask, layer.rows, layer.recording = mask, rows, record
            layer.calls, layer.versions = [], []
        self._bound = weights

    @torch.no_grad()
    def logits(self, weights: Named, buffers: Named, x: Tensor) -> Tensor:
        self.bind(weights, buffers)
        logits: Tensor = self.network(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return logits

    def tape(self, weights: Named, buffers: Named, batch: Batch) -> "GhostTape":
        x, y, mask, sizes, weight, _, where = batch
        self.bind(weights, buffers, mask, None if where is None else sizes)
        outputs = self.network(x.flatten(0, 1) if where is None else x)
        weight = (mask if weight is None else weight).flatten()
        if where is not None:
            weight = weight[where]
        losses, slope = cross_entropy(outputs.detach(), y.flatten(), weight)
        points = [z for layer in self.layers.values() for _, z in layer.calls]
        if any(z._version != v for layer in self.layers.values() for z, v in layer.versions):
            raise UserError(
                "model: a layer's output is changed in place (such as F.relu(..., inplace=True)), which "
                "hides its gradient; write it without inplace"
            )
        grads = list(torch.autograd.grad(outputs, points, slope))
        prepared: dict[str, Any] = {}
        with torch.no_grad():
            for name, layer in self.layers.items():
                own, grads = grads[: len(layer.calls)], grads[len(layer.calls) :]
                prepared[name] = layer.prepare(own)
                layer.calls, layer.versions = [], []
        if where is not None:
            return PackedTape(self.layers, prepared, losses, mask, where)
        return GhostTape(self.layers, prepared, losses.view(y.shape))


class GhostTape:
    def __init__(self, layers: dict[str, Stacked], prepared: dict[str, Any], losses: Tensor):
        self.layers, self.prepared, self.losses = layers, prepared, losses

    def cost(self) -> Cost:
        # Each kept input and gradient has about one more of its size in the autograd graph.
        floats = 2 * sum(t.numel() for kept in self.prepared.values() for t in kept)
        return Cost(floats, sum(layer.products(self.prepared[n]) for n, layer in self.layers.items()))

    @torch.no_grad()
    def drop(self, bad: Tensor) -> None:
        for name, kept in self.prepared.items():
            self.prepared[name] = type(kept)(t.masked_fill(_like(bad, t), 0) for t in kept)

    @torch.no_grad()
    def square_norms(self) -> Tensor:
        return sum(
            (layer.square_norms(self.prepared[name]) for name, layer in self.layers.items()),
            start=torch.zeros_like(self.losses),
        )

    @torch.no_grad()
    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: float) -> None:
        for prefix, layer in self.layers.items():
            own = {n: targets[f"{prefix}.{n}"] for n in layer.names}
            layer.add(self.prepared[prefix], own, coefficients, alpha)


class PackedTape(GhostTape):
    """The same for packed samples: layers see [1, N], the engine [C, B] as ever, zero in the padding."""

    def __init__(
        self,
        layers: dict[str, Stacked],
        prepared: dict[str, Any],
        losses: Tensor,
        mask: Tensor,
        where: Tensor,
    ):
        self.mask, self.where = mask, where
        super().__init__(layers, prepared, self._spread(losses))

    def _spread(self, values: Tensor) -> Tensor:
        return torch.zeros_like(self.mask).put_(self.where, values.to(self.mask.dtype))

    def _packed(self, values: Tensor) -> Tensor:
        return values.flatten()[self.where][None]

    def drop(self, bad: Tensor) -> None:
        super().drop(self._packed(bad))

    @torch.no_grad()
    def square_norms(self) -> Tensor:
        layers = self.layers.items()
        squares = sum((layer.square_norms(self.prepared[n]) for n, layer in layers), start=torch.zeros(()))
        return self._spread(squares.flatten())

    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: float) -> None:
        super().add(targets, self._packed(coefficients), alpha)


class VmapNet:
    """Any other network: per-sample gradients by nested vmap, one [C, B, ...] tensor per parameter."""

    packs = False

    def __init__(self, network: nn.Module):
        self.network = copy.deepcopy(network)
        self.dropouts = name_dropouts(self.network)
        for dropout in self.dropouts:
            dropout.traced = True
        if any(b.is_floating_point() for b in self.network.buffers()):
            raise NotImplementedError("layers with running statistics need a stacked rule")

    def _loss(self, weights: Named, x: Tensor, y: Tensor, name: Tensor | None) -> tuple[Tensor, Tensor]:
        for dropout in self.dropouts:
            assert name is not None
            dropout.rename(name[None])
        outputs = torch.func.functional_call(self.network, weights, (x[None],))
        loss = F.cross_entropy(outputs, y[None])
        return loss, loss.detach()

    @torch.no_grad()
    def logits(self, weights: Named, buffers: Named, x: Tensor) -> Tensor:
        self.network.eval()
        each = torch.func.vmap(lambda w, inputs: torch.func.functional_call(self.network, w, (inputs,)))
        logits: Tensor = each(weights, x)
        return logits

    def tape(self, weights: Named, buffers: Named, batch: Batch) -> "VmapTape":
        self.network.train()
        one = torch.func.grad(self._loss, has_aux=True)
        named = 0 if self.dropouts else None
        per_client = torch.func.vmap(one, in_dims=(None, 0, 0, named))
        both = torch.func.vmap(per_client, in_dims=(0, 0, 0, named))
        grads, losses = both(weights, batch.x, batch.y, batch.names)
        if batch.weight is not None:
            grads = {n: g * _like(batch.weight, g) for n, g in grads.items()}
        return VmapTape(grads, losses)


class VmapTape:
    def __init__(self, grads: dict[str, Tensor], losses: Tensor):
        self.grads, self.losses = grads, losses

    def drop(self, bad: Tensor) -> None:
        self.grads = {n: g.masked_fill(_like(bad, g), 0) for n, g in self.grads.items()}

    def cost(self) -> Cost:
        size = sum(g.numel() for g in self.grads.values())
        return Cost(size, size)

    def square_norms(self) -> Tensor:
        return sum(
            (g.flatten(2).square().sum(2) for g in self.grads.values()), start=torch.zeros_like(self.losses)
        )

    def add(self, targets: dict[str, Tensor], coefficients: Tensor, alpha: float) -> None:
        for name, g in self.grads.items():
            total = torch.einsum("cb,cbp->cp", coefficients, g.flatten(2))
            targets[name].add_(total.view(targets[name].shape), alpha=alpha)


def _like(mask: Tensor, other: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (other.dim() - mask.dim()))


def stack(network: nn.Module) -> StackedNet:
    """The network for many clients: ghost norms where every layer has a rule, else nested vmap."""
    try:
        return GhostNet(network)
    except NotImplementedError:
        return VmapNet(network)
