"""What is released is a sum of integer shares: their norms, their noise, and that no single one is seen."""

import math

import torch
from torch import Tensor

from fedpriv.audit.finding import Finding, judged, unasked
from fedpriv.audit.spread import SURE
from fedpriv.audit.taps import Bench
from fedpriv.audit.worst import Worst
from fedpriv.privacy.skellam import SampledSkellam
from fedpriv.uploads.secure_sum import centred as around_zero

_KEYS = 4  # rounds that are listened to


def centred(values: Tensor, bench: Bench) -> Tensor:
    bits = bench.trainer.mechanism.facts.bits
    return values if bits is None else around_zero(values.to(torch.int64), bits)


def integers(bench: Bench, client: int, noise: Tensor, change: Tensor, text: str) -> list[Finding]:
    """Shares are integers, and charged by their own norms: these are exact."""
    charge = bench.charge(client)
    if charge is None or not isinstance(charge[0], SampledSkellam):
        return []
    event, whole = charge[0], change.double()
    l2, l1 = float(whole.norm()), float(whole.abs().sum())
    if not bool(noise.any()) and l2 == 0.0:
        return []  # a round that was refused
    have, error = float(noise.double().square().mean()), SURE * math.sqrt(2 / noise.numel())
    return [
        judged(
            "L2 norm of the integers",
            l2 <= event.l2 * (1 + 1e-9),
            f"{l2:.6g} of {event.l2:.6g}: {text}",
            l2,
            event.l2,
        ),
        judged(
            "L1 norm of the integers",
            l1 <= event.l1 * (1 + 1e-9),
            f"{l1:.6g} of {event.l1:.6g}: {text}",
            l1,
            event.l1,
        ),
        judged(
            "variance of the sum's noise",
            have >= event.variance * (1 - error),
            f"{have:.5g}, charged {event.variance:.5g}: {text}",
            have,
            event.variance,
        ),
    ]


def hidden(bench: Bench) -> list[Finding]:
    """A single share must not be among what reaches the server, up to the modulus it is sent in."""
    check, bits = "single shares are hidden", bench.trainer.mechanism.facts.bits
    if bench.trainer.upload.facts.sum_only:
        return [unasked(check, "the sum is ideal: single shares do not exist")]
    seen = False
    for key in range(_KEYS):  # a round of one client hides nothing, and need not
        bench.reset(key)
        heard = bench.round(messages=Worst(bench, "small"), able=bench.everyone(), train=False)
        if len(heard.clients) < 2:
            continue
        assert heard.private is not None
        parts = vars(heard.sent).values() if hasattr(heard.sent, "__dict__") else [heard.sent]
        sent = [row for t in parts if isinstance(t, Tensor) and t.dim() == 2 for row in t]
        shares = {_residue(row, bits) for row in heard.private}
        seen |= any(_residue(row, bits) in shares for row in sent)
    text = "the server is sent a client's share as it is" if seen else "no share reaches the server as it is"
    return [judged(check, not seen, text)]


def _residue(row: Tensor, bits: int | None) -> tuple[int | float, ...]:
    return tuple((row if bits is None else row.to(torch.int64) % 2**bits).tolist())
