"""One step of privacy distillation on a batch, in FedPD's two views.

Optimisation (eq. 1), alternating: G follows H(x_g) + L(A(x_g), y) with A held still, then A follows L(A(x_g),
y) with G held still. Generalisation (eq. 2), together: L(A(x), y) + L(A(x_g), y) + H(x_g) + d(r(x_g), r(x)),
r being what A's last layer sees and d the mean squared difference. A sees x_g with the noise it will be
released with.

The entropy H is bounded by a variance (the paper's surrogate); the default is the mean square, which the
authors' later code uses and which is larger. KL is per pixel, like the rest. Departures: in eq. 1 L(A(x), y)
depends on G only through A's training, so when alternating it can only train A, as in that code
(`weight_raw=0`: A sees x_g only); mixup (Zhang et al. 2017) mixes what A is trained on. In eq. 2, where
A's losses train G too, the mixed losses are added to the unmixed ones and train A only.

What is random about a sample (latent, noise, dropout) follows from its number and the batch's, whoever else
is there; only mixup looks at the batch as a whole.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from scipy.special import betaincinv
from torch import Tensor, nn

from fedpriv.accelerator import there
from fedpriv.engine.dropout import name_dropouts
from fedpriv.errors import UserError
from fedpriv.randomness.source import Source
from fedpriv.stages.fedpd.noise import Noise
from fedpriv.stages.fedpd.vae import Distiller, kl_divergence


@dataclass(frozen=True)
class Distillation:
    """All that decides a distillation besides the data, the networks and what is random."""

    view: Literal["optimisation", "generalisation"]
    entropy: Literal["mse", "variance"]
    noise: Noise
    rounds: int
    sample_rate: float
    local_epochs: int
    batch_size: int
    lr: float
    data_fraction: float
    mixup: float
    weight_entropy: float
    weight_features: float
    weight_raw: float
    weight_kl: float
    weight_distance: float


class Step:
    """Trains a distiller and a classifier, batch after batch; both start from what they are given."""

    def __init__(self, recipe: Distillation, distiller: Distiller, classifier: nn.Module, source: Source):
        self.recipe, self.distiller, self.classifier = recipe, distiller.train(), classifier.train()
        self.source, self.number = source, 0  # of the next batch; an empty one counts too
        self.latents, self.feature_noise = source.of("latent"), source.of("feature noise")
        self.dropouts = name_dropouts(classifier)
        self.seen: list[Tensor] = []  # what the classifier's last layer saw
        last_layer(classifier).register_forward_pre_hook(lambda _, inputs: self.seen.append(inputs[0]))
        parts = [distiller, classifier]
        self.optimisers = [torch.optim.AdamW(p.parameters(), lr=recipe.lr) for p in parts]

    def classify(self, x: Tensor, samples: Tensor, of: str) -> Tensor:
        """Logits; `of` names the pass among those of a batch."""
        for dropout in self.dropouts:
            dropout.name(self.source.of(of), samples, self.number)
        self.seen.clear()
        logits: Tensor = self.classifier(x)
        return logits

    def __call__(self, samples: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Both networks' updates for a batch, given its samples' numbers [B], inputs and labels; the
        classifier's mean loss on the features."""
        loss = self._batch(samples, x, y)
        self.number += 1
        return loss

    def _batch(self, samples: Tensor, x: Tensor, y: Tensor) -> Tensor:
        recipe = self.recipe
        mean, log_variance = self.distiller.encode(x)
        z = mean + (log_variance / 2).exp() * self.latents.normals(samples, mean.detach(), self.number)
        features = x - self.distiller.decode(z)
        noisy = features + recipe.noise.draw(x, self.feature_noise, samples, self.number)
        if recipe.entropy == "mse":
            entropy = features.square().mean()
        else:
            entropy = features.var(0, unbiased=False).mean()
        cost = recipe.weight_entropy * entropy
        cost = cost + recipe.weight_kl * kl_divergence(mean, log_variance) / x[0].numel()
        of_features = F.cross_entropy(self.classify(noisy, samples, "features"), y)
        cost = cost + recipe.weight_features * of_features
        for_g, for_a = self.optimisers[0], self.optimisers[1]
        if recipe.view == "generalisation":
            seen = self.seen[0]
            of_raw = F.cross_entropy(self.classify(x, samples, "raw"), y)
            distance = (seen - self.seen[0]).square().mean()
            cost = cost + recipe.weight_raw * of_raw + recipe.weight_distance * distance
            if recipe.mixup:
                cost = cost + self._classifier_cost(samples, x, noisy.detach(), y)
            self._descend(cost, for_g, for_a)
        else:
            self._descend(cost, for_g)
            self._descend(self._classifier_cost(samples, x, noisy.detach(), y), for_a)
        return of_features.detach()

    def _classifier_cost(self, samples: Tensor, x: Tensor, noisy: Tensor, y: Tensor) -> Tensor:
        """The classifier's loss on features and on raw samples, both mixed up alike."""
        cost: Tensor = torch.zeros((), device=x.device)
        mixing = self._mixing(len(x)) if self.recipe.mixup else None
        for weight, inputs, name in (
            (self.recipe.weight_features, noisy, "mixed features"),
            (self.recipe.weight_raw, x, "mixed raw"),
        ):
            if not weight:
                continue
            if mixing is None:  # not a mix with share 1: zero times infinity is not a number
                loss = F.cross_entropy(self.classify(inputs, samples, name), y)
            else:
                share, order = mixing
                logits = self.classify(share * inputs + (1 - share) * inputs[order], samples, name)
                loss = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])
            cost = cost + weight * loss
        return cost

    def _mixing(self, count: int) -> tuple[float, Tensor]:
        """The share of a batch in its mix with a reordering of itself, from Beta(mixup, mixup)."""
        u = float(self.source.of("mixup").uniforms([0], 1, self.number))
        order = self.source.of("mixup order", self.number).permutation(count)
        return float(betaincinv(self.recipe.mixup, self.recipe.mixup, u)), there(
            order, self.distiller.low.device
        )

    def _descend(self, cost: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        for each in self.optimisers:
            each.zero_grad()
        cost.backward()
        for optimiser in optimisers:
            optimiser.step()


def last_layer(classifier: nn.Module) -> nn.Linear:
    """Its inputs are the representation r(x)."""
    layers = [m for m in classifier.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise UserError("stage=fedpd: the model has no dense last layer; choose another model")
    return layers[-1]
