"""What crosses the wire, in how many bytes, and what the server sees of it."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fedpriv.parts.base import Part
from fedpriv.parts.declarations import UploadFacts
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round


class Upload(Part, ABC):
    facts = UploadFacts()

    def amplify(self, guarantee: Guarantee) -> Guarantee:
        """What holds of the messages as the server sees them; `setup` has been called."""
        return guarantee

    @abstractmethod
    def encode(self, messages: Tensor, round_: Round, source: Source) -> tuple[Any, int]:
        """What travels, from private messages [C, D'], and its size in bytes over all participants."""

    @abstractmethod
    def decode(self, sent: Any, round_: Round) -> Tensor:
        """What the server sees, [C, D'], or no row where there is nothing."""

    def downlink(self, round_: Round) -> int:
        """Bytes broadcast to all participants."""
        return len(round_.clients) * round_.start.numel() * 4
