"""PFA+'s upload (PFA section 4.5): a private client sends its coordinates in the last round's subspace.

Public clients, and everybody in the warm-up round, send the whole update. Four bytes a number; the subspace a
private client needs for projecting is counted in the downlink.
"""

from typing import Any, cast

from torch import Tensor

from fedpriv.aggregators.pfa_plus import PFAPlus
from fedpriv.parts.declarations import UPDATES, UploadFacts
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round
from fedpriv.uploads.plain import Plain


class Projected(Plain):
    facts = UploadFacts(takes=UPDATES, mixes="nothing", shows_cohort=False, needs_subspace=True)

    @property
    def aggregator(self) -> PFAPlus:
        """Whose subspace clients project onto; its facts say that it keeps one."""
        return cast(PFAPlus, self.wiring.aggregator)

    def encode(self, messages: Tensor, round_: Round, source: Source) -> tuple[Any, int]:
        space = self.aggregator.subspace
        if space is None:
            return super().encode(messages, round_, source)
        public = self.aggregator.public_rows(round_, messages.device)
        sent = messages[public], space.coordinates(messages[~public])
        return sent, 4 * sum(part.numel() for part in sent)

    def decode(self, sent: Any, round_: Round) -> Tensor:
        space = self.aggregator.subspace
        received: Tensor
        if space is None:
            received = sent
            return received
        whole, coordinates = sent
        public = self.aggregator.public_rows(round_, whole.device)
        received = whole.new_empty(len(public), whole.shape[1])
        received[public], received[~public] = whole, space.expand(coordinates)
        return received

    def downlink(self, round_: Round) -> int:
        space = self.aggregator.subspace
        private = int((~self.aggregator.public[round_.clients]).sum())
        size = 0 if space is None else sum(b.numel() for b in space.bases)
        return super().downlink(round_) + 4 * private * size
