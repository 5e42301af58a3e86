"""PFA+'s upload (PFA section 4.5): a private client sends its coordinates in the last round's subspace.

Public clients, and everybody in the warm-up round, send the whole update. Four bytes a number; the subspace a
private client needs for projecting is counted in the downlink.
"""

from typing import Any

from torch import Tensor

from fedpriv.aggregators.base import Aggregator
from fedpriv.aggregators.pfa_plus import PFAPlus
from fedpriv.errors import UserError
from fedpriv.randomness.source import Source
from fedpriv.setting import Round, Setting
from fedpriv.uploads.plain import Plain


class Projected(Plain):
    def setup(self, setting: Setting, aggregator: Aggregator) -> None:
        if not isinstance(aggregator, PFAPlus):
            raise UserError(
                "upload=projected: only aggregator=pfa_plus keeps a subspace; choose upload=plain"
            )
        self.aggregator = aggregator
        aggregator.arrive_projected = True

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
