"""PrivateFL's personal data transformation x -> f(alpha * h(x) + beta), kept at home (section 4).

linear (the paper's choice): f and h the identity; sigmoid, tanh, relu: that f; quadratic: h(x) = x^2. alpha
and beta are each fixed at their initial value, one number per channel, or one per pixel and channel (Table
2). A feature vector is one channel of d pixels. By default alpha = 1 and beta = 0: the linear one starts as
the identity.
"""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.config.limits import Positive, Within
from fedpriv.engine.rules import Stacked, rule

Extent = Literal["fixed", "channel", "pixel"]


class Affine(nn.Module):
    """alpha * x + beta for samples of one shape; what is fixed is a plain number and no parameter."""

    def __init__(
        self, shape: tuple[int, ...], alpha: Extent, beta: Extent, alpha_init: float, beta_init: float
    ):
        super().__init__()
        self.scales_pixels = alpha == "pixel"
        per_channel = (shape[0], *[1] * (len(shape) - 1)) if len(shape) > 1 else (1,)
        extents: dict[str, tuple[int, ...]] = {"channel": per_channel, "pixel": shape}
        for name, extent, value in (("alpha", alpha, alpha_init), ("beta", beta, beta_init)):
            if extent == "fixed":
                setattr(self, name, value)
            else:
                setattr(self, name, nn.Parameter(torch.full(extents[extent], value)))

    def forward(self, x: Tensor) -> Tensor:
        alpha: Any = self.alpha
        out: Tensor = x * alpha + self.beta
        return out


@rule(Affine)
class StackedAffine(Stacked):
    """Gradients by hand: dL/dbeta = g and dL/dalpha = g x, summed over what shares a number."""

    packs = True

    def __init__(self, layer: Affine):
        super().__init__(layer)
        self.fixed: dict[str, Any] = {"alpha": layer.alpha, "beta": layer.beta}
        self.scales_pixels = layer.scales_pixels

    def value(self, name: str) -> Any:
        """A parameter of all clients, [C, ...], or the number it is fixed at."""
        return self.bound.get(name, self.fixed[name])

    def forward(self, x: Tensor) -> Tensor:
        if not self.bound:
            plain: Tensor = x * self.fixed["alpha"] + self.fixed["beta"]
            return plain
        alpha, beta = (
            self.each(v) if isinstance(v := self.value(n), Tensor) else v for n in ("alpha", "beta")
        )
        out = x.view(self.lead, -1, *x.shape[1:]) * alpha + beta
        return self.record(x.detach(), out.view(x.shape))

    def prepare(self, grads: list[Tensor]) -> tuple[Tensor, ...]:
        """Each sample's gradient of each parameter, [C, B, *shape of the parameter]."""
        if not self.names:
            return ()
        (x, _), (g,) = self.calls[0], grads
        own = {"alpha": g * x, "beta": g}
        split = {n: own[n].view(self.lead, -1, *g.shape[1:]) for n in self.names}
        return tuple(s.sum_to_size(*s.shape[:2], *self.bound[n].shape[1:]) for n, s in split.items())

    def square_norms(self, tape: tuple[Tensor, ...]) -> Tensor:
        return sum((t.flatten(2).square().sum(2) for t in tape), start=torch.zeros(()))

    def add(
        self, tape: tuple[Tensor, ...], targets: dict[str, Tensor], coefficients: Tensor, alpha: float
    ) -> None:
        for name, per_sample in zip(self.names, tape, strict=True):
            targets[name].add_(self.sums(coefficients, per_sample), alpha=alpha)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Elementwise(nn.Sequential):
    """The transform; `lr` is its own learning rate where it trains outside the mechanism."""

    def __init__(self, layers: list[nn.Module], lr: float | None):
        super().__init__(*layers)
        self.lr = lr


def elementwise(
    shape: tuple[int, ...],
    *,
    function: Literal["linear", "sigmoid", "tanh", "relu", "quadratic"] = "linear",
    alpha: Extent = "channel",
    beta: Extent = "pixel",
    alpha_init: Annotated[float, Within(least=-1e6, most=1e6)] = 1.0,
    beta_init: Annotated[float, Within(least=-1e6, most=1e6)] = 0.0,
    lr: Positive | None = None,
) -> nn.Module:
    before = [Square()] if function == "quadratic" else []
    after: dict[str, list[nn.Module]] = {"sigmoid": [nn.Sigmoid()], "tanh": [nn.Tanh()], "relu": [nn.ReLU()]}
    affine = Affine(shape, alpha, beta, float(alpha_init), float(beta_init))  # a whole number has no gradient
    return Elementwise([*before, affine, *after.get(function, [])], lr)
