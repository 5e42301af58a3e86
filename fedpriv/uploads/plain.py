"""Every participant sends its vector as it is, four bytes a number."""

from typing import Any

from torch import Tensor

from fedpriv.parts.base import by_client
from fedpriv.parts.declarations import MEANS, UploadFacts
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round
from fedpriv.uploads.base import Upload


class Plain(Upload):
    facts = UploadFacts(takes=MEANS, mixes="nothing", shows_cohort=False)

    @by_client
    def encode(self, messages: Tensor, round_: Round, source: Source) -> tuple[Any, int]:
        return messages, messages.numel() * 4

    @by_client
    def decode(self, sent: Any, round_: Round) -> Tensor:
        messages: Tensor = sent
        return messages
