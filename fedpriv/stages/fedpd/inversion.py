"""The white-box model inversion attack on shared features (FedPD, section 4.2; He et al. 2019).

The attacker knows the distiller G, which every client receives, the clipping norm and a shared row s (x_g or
x_p), and looks for the image that would give it: min ||clip(x - G(x)) - s||^2 / d + tv TV(x), by Adam from
the middle of the range.
"""

import torch
from torch import Tensor

from fedpriv.stages.fedpd.release import clipped
from fedpriv.stages.fedpd.vae import Distiller


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference between neighbours, [B]."""
    down, right = (x[:, :, 1:] - x[:, :, :-1]).abs(), (x[..., 1:] - x[..., :-1]).abs()
    return down.flatten(1).mean(1) + right.flatten(1).mean(1)


def invert(
    shared: Tensor,
    distiller: Distiller,
    clip: float | None = None,
    *,
    steps: int = 500,
    lr: float = 0.05,
    tv: float = 1e-3,
) -> Tensor:
    """The images [B, c, h, w] the attacker believes in."""
    low, high = distiller.low, distiller.high
    middle = ((low + high) / 2).expand_as(shared[0])
    x = middle.repeat(len(shared), 1, 1, 1).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=lr)
    for _ in range(steps):
        misfit = (clipped(x - distiller(x), clip) - shared).square().flatten(1).mean(1)
        (gradient,) = torch.autograd.grad((misfit + tv * total_variation(x)).sum(), x)
        x.grad = gradient
        optimiser.step()
        with torch.no_grad():
            torch.minimum(torch.maximum(x, low, out=x), high, out=x)
    return x.detach()
