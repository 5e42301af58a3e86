"""Standard normals from random words by Box and Muller's transform, in torch operations: the oracle.

z = sqrt(-2 ln u) (cos v, sin v): two words make two numbers. u has 46 bits, so that |z| reaches 8.07
deviations; the angle v has 18, of which two choose a quarter of the circle. Only additions, products and one
root, each rounded once: every device and every processor gets the same bits.

The first word is a sign (which of two opposite quarters) and 31 bits of u; the second holds the other 15 bits
of u, 16 bits of the angle, and whether sine and cosine change places.
"""

import torch
from torch import Tensor

from fedpriv.randomness import chacha

LANES = 8  # blocks made side by side; a row's numbers come in groups of LANES * 16
GROUP = LANES * chacha.WORDS
END = 8.07  # deviations: sqrt(-2 ln 2^-47)

# -2 ln(1 + t) = t LOG(t) for 1 + t from sqrt(1/2) to sqrt(2); sin(pi/2 g) = g SIN(g^2) and
# cos(pi/2 g) = COS(g^2) for |g| <= 1/2. The largest relative errors are as small as they can be: 1.7e-7, 3e-9
# and 3e-8. A number has 24 bits, that is errors of 6e-8.
LOG = (
    -1.9999998807907104, 1.0000072717666626, -0.6667011976242065, 0.4993981719017029, -0.39800330996513367,
    0.34501662850379944, -0.3244515061378479, 0.20213767886161804,
)  # fmt: skip
SIN = (1.5707963705062866, -0.6459634900093079, 0.07968003302812576, -0.00460165785625577)
COS = (0.9999999403953552, -1.233696699142456, 0.25359493494033813, -0.02039858140051365)
MINUS_2_LN2 = -1.3862943649291992
ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2) as a float

# Bits become a float without a conversion: as the last ones of a number of a known size, which is taken away.
HIGH_BITS, LOW_SHIFT = 31, 17
LOW_SIZE, LOW_LESS = 0x43800000, 256 - 2.0**-16  # 256 + k / 2^15 - (256 - 2^-16) = (k + 1/2) / 2^15
ANGLE, ANGLE_SIZE, ANGLE_LESS = 0x1FFFE, 0x42800001, 64.5  # 64 + (2k + 1) / 2^17 - 64.5 = g


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
    """Two normals of two int32 words."""
    low = (((b >> LOW_SHIFT) & 0x7FFF) | LOW_SIZE).view(torch.float32) - LOW_LESS
    u = (a & 0x7FFFFFFF) + low  # 2^31 times a uniform number
    bits = u.view(torch.int32) - (ROOT_HALF + (HIGH_BITS << 23))
    t = ((bits & 0x7FFFFF) + ROOT_HALF).view(torch.float32) - 1.0
    radius = _root((bits >> 23) * MINUS_2_LN2 + t * polynomial(LOG, t))
    g = ((b & ANGLE) | ANGLE_SIZE).view(torch.float32) - ANGLE_LESS
    square = g * g
    sine, cosine = g * polynomial(SIN, square), polynomial(COS, square)
    swapped = (b & 1) == 1
    x, y = torch.where(swapped, sine, cosine), torch.where(swapped, cosine, sine)
    radius = torch.where(a < 0, -radius, radius)
    return x * radius, y * radius


def _root(x: Tensor) -> Tensor:
    """Rounded as it should be; that of torch on a CPU is now and then one unit off."""
    return x.double().sqrt().float() if x.is_cpu else x.sqrt()


def polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Of four or eight coefficients, in halves: neighbours first, then neighbouring pairs (Estrin 1960)."""
    terms: list[Tensor | float] = list(coefficients)
    while len(terms) > 1:
        terms = [high * x + low for low, high in zip(terms[::2], terms[1::2], strict=True)]
        x = x * x if len(terms) > 1 else x
    assert isinstance(terms[0], Tensor)
    return terms[0]
