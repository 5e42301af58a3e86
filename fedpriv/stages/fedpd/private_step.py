"""One step of privacy distillation by DP-SGD: both networks follow clipped, summed and noised gradients.

Gradients of single samples (Opacus) are clipped to `clip` over both networks together, and AdamW sees only
their sum with noise of deviation `std`, divided by the expected batch. Where the networks take turns (eq. 1)
a batch answers twice, each time clipped to clip / sqrt(2): Gaussian releases of one batch compose as one of
sensitivity `clip`, adaptively too (Dong, Roth and Su 2022). No mixup, for a mixed sample is two; and all that
is random about a sample follows from its own number, so its absence leaves the others' gradients as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedpriv.engine.loop import no_inplace
from fedpriv.randomness.source import Source, normals_of
from fedpriv.stages.fedpd.losses import Distillation, Step
from fedpriv.stages.fedpd.vae import Distiller


class PrivateStep(Step):
    """A step that sees single samples' gradients only clipped, summed and noised."""

    def __init__(
        self,
        recipe: Distillation,
        distiller: Distiller,
        classifier: nn.Module,
        source: Source,
        *,
        clip: float,
        std: float,
    ):
        super().__init__(replace(recipe, mixup=0.0), distiller, classifier, source)
        self.clip, self.std = clip, std
        self.noises = {p: source.of("noise", n) for n, p in enumerate(_parameters(self.optimisers))}
        for network in (distiller, classifier):
            no_inplace(network)
            from opacus import GradSampleModule

            GradSampleModule(network)  # its hooks stay on the network's layers

    def _batch(self, samples: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if len(x):
            return super()._batch(samples, x, y)
        parameters = _parameters(self.optimisers)
        self._release(parameters, [torch.zeros_like(p) for p in parameters])
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
        bad = ~norms.isfinite()  # a sample that overflowed is left out
        share = (bound / norms.clamp(min=bound)).masked_fill(bad, 0)
        totals = [torch.einsum("b,b...->...", share, row.masked_fill(_like(bad, row), 0)) for row in rows]
        self._release(parameters, totals)
        for optimiser in optimisers:
            optimiser.step()

    def _release(self, parameters: list[nn.Parameter], totals: list[Tensor]) -> None:
        """Noise on the clipped sums of a batch, which releases every parameter once."""
        noises = normals_of([self.noises[p] for p in parameters], [t.flatten() for t in totals], self.number)
        for parameter, total, noise in zip(parameters, totals, noises, strict=True):
            parameter.grad = (total + self.std * noise.view_as(total)) / self.recipe.batch_size


def _like(bad: Tensor, row: Tensor) -> Tensor:
    return bad.view(-1, *[1] * (row.dim() - 1))


def _parameters(optimisers: Sequence[torch.optim.Optimizer]) -> list[nn.Parameter]:
    return [p for o in optimisers for group in o.param_groups for p in group["params"]]
