"""Standard normals from random words by Box and Muller's transform, in torch operations: the oracle.

z = sqrt(-2 ln u) (cos v, sin v): two words make two numbers. u has 46 bits, so that |z| reaches 8.07
deviations; the angle v has 18, of which the first two choose a quarter of the circle. Only additions,
products and one root, each rounded once: every device and every processor gets the same bits.
"""

import torch
from torch import Tensor

from fedpriv.randomness import chacha

LANES = 8  # blocks made side by side; a row's numbers come in groups of LANES * 16
GROUP = LANES * chacha.WORDS
END = 8.07  # deviations: sqrt(-2 ln 2^-47)

# ln(1 + t) = t - t^2 / 2 + t^3 LOG(t) for 1 + t from sqrt(1/2) to sqrt(2); sin(pi/2 g) = g SIN(g^2) and
# cos(pi/2 g) = COS(g^2) for |g| <= 1/2. Fitted in Chebyshev points; errors below 5e-8.
LOG = (
    0.3333333134651184, -0.24999989569187164, 0.20000715553760529, -0.16668477654457092, 0.14249753952026367,
    -0.12411017715930939, 0.11662944406270981, -0.11571795493364334, 0.07146978378295898,
)  # fmt: skip
SIN = (
    1.5707963705062866,
    -0.6459640860557556,
    0.07969257980585098,
    -0.004681266378611326,
    0.00015820653061382473,
)
COS = (1.0, -1.2337005138397217, 0.25366920232772827, -0.02086007036268711, 0.00090362987248227)
LN2 = 0.6931471824645996
ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2) as a float
HALF = 0.5
RADIUS_BITS, ANGLE_BITS = 46, 18


def normals(start: Tensor, names: Tensor, width: int) -> Tensor:
    """Float32 [..., width] for rows named [..., 3]; start: chacha.head of a key, [12] or one a row."""
    groups = torch.arange(-(-width // GROUP), dtype=torch.int32, device=start.device)
    return numbers_of(start, groups, names)[..., :width]


def numbers_of(start: Tensor, groups: Tensor, names: Tensor) -> Tensor:
    """Those of some groups [..., G] of a row's numbers, float32 [..., G * GROUP]."""
    lanes = torch.arange(LANES, dtype=torch.int32, device=start.device)
    blocks = (groups[..., None] * LANES + lanes).flatten(-2)
    words = chacha.blocks(start, blocks, names)  # [..., G * LANES, 16]
    words = words.unflatten(-1, (8, 2)).unflatten(-3, (-1, LANES)).movedim(-3, -1)  # [..., 8, 2, LANES]
    z = torch.stack(pair(words[..., 0, :], words[..., 1, :]), -2)  # [..., G, 8, 2, LANES]
    return z.flatten(-4)


def pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two normals of two int32 words.

    A product or sum with `alpha` is one kernel, but may be rounded once instead of twice: only where both are
    the same, because alpha is a power of two.
    """
    low = torch.add((b >> ANGLE_BITS) & 0x3FFF, a & 0xFF, alpha=1 << 14) + HALF
    u = ((a >> 8) & 0xFFFFFF) * float(1 << 22) + low  # 2^46 times a uniform number
    bits = u.view(torch.int32)
    exponent = (bits - ROOT_HALF) >> 23
    t = torch.sub(bits, exponent, alpha=1 << 23).view(torch.float32) - 1.0
    square = t * t
    rest = torch.sub(t, square, alpha=HALF) + square * t * _value(LOG, t)
    logarithm = (exponent - RADIUS_BITS) * LN2 + rest
    radius = logarithm.clamp(max=0.0).mul(-2.0).sqrt()
    g = ((b & 0xFFFF) - (32768 - HALF)) * (1.0 / 65536.0)
    square = g * g
    sine, cosine = g * _value(SIN, square), _value(COS, square)
    odd = (b & (1 << 16)) != 0
    x, y = torch.where(odd, -sine, cosine), torch.where(odd, cosine, sine)
    signed = (radius.view(torch.int32) ^ ((b & (1 << 17)) << 14)).view(torch.float32)
    return x * signed, y * signed


def _value(polynomial: tuple[float, ...], x: Tensor) -> Tensor:
    total = x * polynomial[-1]
    for coefficient in reversed(polynomial[1:-1]):
        total = (total + coefficient) * x
    return total + polynomial[0]
