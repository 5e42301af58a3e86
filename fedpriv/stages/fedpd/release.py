"""What the clients share (FedPD, section 3.3): x_p = x_g + noise, x_g clipped if asked, and the labels.

The ablations share raw samples with noise, noise alone, or x_g without noise.
"""

from typing import Literal

import torch
from torch import Tensor

from fedpriv.engine.data import ClientData
from fedpriv.mechanisms.client_level import clip as clip_rows
from fedpriv.randomness.source import Source
from fedpriv.session.screen import Notes
from fedpriv.stages.fedpd.noise import Distance, Noise, within
from fedpriv.stages.fedpd.vae import Distiller

Content = Literal["features", "raw", "noise", "bare"]
WHAT = {
    "features": "distilled features with noise",
    "raw": "raw samples with noise",
    "noise": "noise alone",
    "bare": "distilled features without noise",
}
_BLOCK = 1024  # samples distilled at once
_READY = 512 << 20  # bytes above which the shared set is kept in half precision


def distances(
    content: Content, low: Tensor, high: Tensor, shape: tuple[int, ...], clip: float | None
) -> tuple[Distance, Distance]:
    """How far a release moves if a sample is replaced by any other, and if its row is emptied instead.

    `low` and `high` [c, 1, 1] are the public range of samples; x - G(x) reaches its width both ways.
    """
    width, reach = ((b - torch.zeros(shape)).flatten() for b in (high - low, torch.maximum(-low, high)))
    if content == "noise":
        return Distance(0.0, 0.0, 0.0), Distance(0.0, 0.0, 0.0)
    if content == "raw":
        emptied, replaced = within(reach, clip), within(width, None if clip is None else 2 * clip)
    else:
        emptied, replaced = within(width, clip), within(2 * width, None if clip is None else 2 * clip)
    return replaced, emptied


@torch.no_grad()
def features(x: Tensor, distiller: Distiller | None) -> Tensor:
    """x_g, or x itself without a distiller, [B, ...]."""
    return x if distiller is None else x - distiller(x)


def clipped(x: Tensor, bound: float | None) -> Tensor:
    """Every row scaled into the ball of radius `bound`."""
    return x if bound is None else clip_rows(x.flatten(1), bound)[0].view_as(x)


def released(
    data: ClientData,
    content: Content,
    distiller: Distiller | None,
    noise: Noise,
    clip: float | None,
    source: Source,
) -> tuple[Tensor, Tensor]:
    """All clients' shared samples, client after client, and their labels; noise follows from numbers."""
    out: list[Tensor] = []
    numbers = data.all_owned
    half = numbers.numel() * data.x[0].numel() * 4 > _READY
    blocks = numbers.split(_BLOCK)
    notes = Notes("making what is shared: block", len(blocks))
    for done, block in enumerate(blocks, 1):
        x, _ = data.take(block)
        x = torch.zeros_like(x) if content == "noise" else clipped(features(x, distiller), clip)
        if content != "bare":
            x = x + noise.draw(x, source, block)
        out.append(x.half() if half else x)
        notes.show(done)
    return torch.cat(out), data.y[numbers]
