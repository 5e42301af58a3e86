"""Everyone on the same samples: W (alpha x + beta) = alpha (W x) + W beta, so W x is computed once for all.

Where personal networks differ only by an affine transform in front of a linear layer, and by what is behind
that layer, judging K clients on the whole test set then costs one product of the first layer instead of K.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.engine.layout import Layout
from fedpriv.engine.rules import StackedLinear
from fedpriv.engine.tape import GhostNet, Named, StackedNet
from fedpriv.transforms.elementwise import StackedAffine


@dataclass(frozen=True)
class Fold:
    net: GhostNet
    affine: StackedAffine | None
    linear: StackedLinear
    rest: nn.Module

    @classmethod
    def of(cls, net: StackedNet, layout: Layout) -> "Fold | None":
        """The fold of a stacked network, or None where it has another shape."""
        if not isinstance(net, GhostNet):
            return None
        transform, model = (getattr(net.network, n, None) for n in ("transform", "model"))
        if not (isinstance(model, nn.Sequential) and len(model) > 1):
            return None
        layers = list(transform) if isinstance(transform, nn.Sequential) else [transform]
        flatten, linear = model[0], model[1]
        affine = layers[0] if isinstance(layers[0], StackedAffine) else None
        if len(layers) != 1 or type(layers[0]) not in (nn.Identity, StackedAffine):
            return None
        if (affine and affine.scales_pixels) or getattr(net.network, "standard", None) is not None:
            return None
        if not (isinstance(flatten, nn.Flatten) and isinstance(linear, StackedLinear)):
            return None
        if any(e.name.startswith("model.1.") and e.stop > layout.sent for e in layout.entries):
            return None  # the layer is personal
        return cls(net, affine, linear, nn.Sequential(*list(model)[2:]))

    @torch.no_grad()
    def logits(self, weights: Named, buffers: Named, x: Tensor) -> Tensor:
        """Outputs [C, N, classes] of clients with one first layer, all on the samples x [N, ...]."""
        self.net.bind(weights, buffers)
        matrix = self.linear.bound["weight"][0]  # [O, I], the same for every client
        clients, outputs = len(self.linear.bound["weight"]), len(matrix)
        # [C, ...] or a number
        alpha, beta = (self.affine.value(n) for n in ("alpha", "beta")) if self.affine else (1.0, 0.0)
        channels = alpha[0].numel() if isinstance(alpha, Tensor) else 1
        parts = torch.einsum("nkp,okp->kno", x.view(len(x), channels, -1), matrix.view(outputs, channels, -1))
        if isinstance(beta, Tensor):
            shift = beta.expand(clients, *x.shape[1:]).flatten(1) @ matrix.T
        else:
            shift = (beta * matrix.sum(1)).expand(clients, -1)
        if "bias" in self.linear.names:
            shift = shift + self.linear.bound["bias"]
        scale = alpha.view(clients, channels) if isinstance(alpha, Tensor) else parts.new_full((1, 1), alpha)
        first = shift[:, None]  # [C, 1, O]
        for part, factor in zip(parts, scale.T, strict=True):
            first = torch.addcmul(first, part, factor[:, None, None])  # [C, N, O]
        logits: Tensor = self.rest(first.flatten(0, 1)).unflatten(0, first.shape[:2])
        return logits
