"""Laplace noise from uniform numbers of 53 bits: the package's one sampler of it.

The first bit is the sign, the other 52 make u in the middles of 2^52 equal parts of (0, 1), and -ln u has the
law of the magnitude. Nothing is rounded before the logarithm, both signs are alike, and zero is never drawn.
"""

import math

import torch
from torch import Tensor

from fedpriv.accelerator import widest
from fedpriv.randomness.source import Numbers, Source

_BITS = 52  # of the magnitude
END = (_BITS + 1) * math.log(2) / math.sqrt(2)  # deviations: the smallest u is 2^-53


def laplaces(source: Source, rows: Numbers, like: Tensor, step: int = 0) -> Tensor:
    """Noise of variance one in the shape of `like` [N, width], on its device, for rows of these numbers."""
    if widest(like.device) != torch.float64:
        uniform = source.uniforms(rows, like.shape[1], step)
    else:
        uniform = source.uniforms_on(like.device, rows, like.shape[1], step)
    doubled = 2 * uniform  # [N, width] in [0, 2)
    negative = doubled >= 1
    u = doubled - negative.double() + 2.0 ** -(_BITS + 1)
    magnitude = -u.log() / math.sqrt(2)
    return torch.where(negative, -magnitude, magnitude).to(like)
