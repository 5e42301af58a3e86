"""What an upload promises."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedpriv.contracts.trial import CLIENTS, Check, round_of, setting, some_uploads, source, want
from fedpriv.parts.declarations import Wiring
from fedpriv.uploads.base import Upload


def upload_checks(new: Callable[[], Upload]) -> Iterator[Check]:
    facts = setting()

    def through(count: int) -> tuple[Tensor, Tensor, int]:
        part = new()
        shares = part.facts.takes == {"shares"}
        keeper = None
        if part.facts.needs_subspace:
            from fedpriv.aggregators.pfa_plus import PFAPlus

            keeper = PFAPlus()
            keeper.setup(facts)
        part.setup(facts, Wiring(sends="shares" if shares else "updates", bits=8, aggregator=keeper))
        sent = (some_uploads(count) * 40).abs().int() if shares else some_uploads(count)
        coded, size = part.encode(sent, round_of(facts, range(count)), source())
        return sent, part.decode(coded, round_of(facts, range(count))), size

    def nobody() -> None:
        _, seen, size = through(0)
        want(len(seen) == 0 and size == 0, f"nobody's messages give {len(seen)} rows and {size} bytes")

    def arrives() -> None:
        for count in (1, 2, CLIENTS):
            sent, seen, size = through(count)
            part = new()
            if part.facts.takes == {"shares"}:
                if len(seen):
                    left = (seen.sum(0) - sent.sum(0)) % 2**8
                    vanish = part.facts.shows_cohort
                    want(vanish or not left.any(), "the sum that arrives is not that of what was sent")
                continue
            want(seen.shape == sent.shape, f"{tuple(sent.shape)} arrives as {tuple(seen.shape)}")
            if part.facts.mixes == "nothing":
                want(torch.equal(seen, sent), "it says it mixes nothing, but what arrives is another")
            elif part.facts.mixes == "rows":
                same = sorted(map(tuple, seen.tolist())) == sorted(map(tuple, sent.tolist()))
                want(same, "rows arrive changed")
            want(torch.equal(seen.sort(0).values, sent.sort(0).values), "values arrive changed")
            want(size > 0, "it counts no bytes")

    yield Check("an empty round: nothing arrives, nothing is counted", nobody)
    yield Check("what arrives is what was sent, up to the order it says it mixes", arrives)
