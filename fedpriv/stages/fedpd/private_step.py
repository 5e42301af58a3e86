"""One step of privacy distillation by DP-SGD: both networks follow clipped, summed and noised gradients.

Gradients of single samples (Opacus) are clipped to `clip` over both networks together, and AdamW sees only
their sum with noise of deviation `std`, divided by the expected batch. Where the networks take turns (eq. 1)
a batch answers twice, each time clipped to clip / sqrt(2): Gaussian releases of one batch compose as one of
sensitivity `clip`, adaptively too (Dong, Roth and Su 2022). No mixup, for a mixed sample is two.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from opacus import GradSampleModule
from torch import Tensor, nn

from fedpriv.engine.loop import no_inplace
from fedpriv.stages.fedpd.losses import Recipe, Step
from fedpriv.stages.fedpd.vae import Distiller


class PrivateStep(Step):
    """A step that sees single samples' gradients only clipped, summed and noised."""

    def __init__(
        self,
        recipe: Recipe,
        distiller: Distiller,
        classifier: nn.Module,
        seed: int,
        *,
        clip: float,
        std: float,
        noise: torch.Generator,
    ):
        super().__init__(replace(recipe, mixup=0.0), distiller, classifier, seed)
        self.clip, self.std, self.noise = clip, std, noise
        for network in (distiller, classifier):
            no_inplace(network)
            GradSampleModule(network)  # its hooks stay on the network's layers

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if len(x):
            return super().__call__(x, y)
        for parameter in _parameters(self.optimisers):
            self._release(parameter, torch.zeros_like(parameter))
        for optimiser in self.optimisers:
            optimiser.step()
        return x.new_zeros(())

    def _descend(self, cost: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        for parameter in _parameters(self.optimisers):
            parameter.grad_sample = None  # type: ignore[attr-defined]
        cost.backward()
        parameters = _parameters(optimisers)
        rows: list[Tensor] = [p.grad_sample for p in parameters]  # type: ignore[attr-defined]
        norms = torch.stack([r.flatten(1).norm(dim=1) for r in rows]).norm(dim=0)  # [B]
        bound = self.clip * math.sqrt(len(optimisers) / len(self.optimisers))
        whole = norms.isfinite()  # a sample that overflowed is left out
        share = bound / norms[whole].clamp(min=bound)
        for parameter, row in zip(parameters, rows, strict=True):
            self._release(parameter, torch.einsum("b,b...->...", share, row[whole]))
        for optimiser in optimisers:
            optimiser.step()

    def _release(self, parameter: nn.Parameter, total: Tensor) -> None:
        """Noise on the clipped sum of a batch."""
        noise = torch.empty_like(parameter).normal_(0, self.std, generator=self.noise)
        parameter.grad = (total + noise) / self.recipe.batch_size


def _parameters(optimisers: Sequence[torch.optim.Optimizer]) -> list[nn.Parameter]:
    return [p for o in optimisers for group in o.param_groups for p in group["params"]]
