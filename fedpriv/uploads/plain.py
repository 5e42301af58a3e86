"""Every participant sends its vector as it is, four bytes a number. The base of every codec."""

from typing import Any

from torch import Tensor

from fedpriv.aggregators.base import Aggregator
from fedpriv.privacy.ledger import Guarantee
from fedpriv.randomness.source import Source
from fedpriv.setting import Round, Setting


class Plain:
    def setup(self, setting: Setting, aggregator: Aggregator) -> None:
        """Learn the facts of the run, and what the server's aggregator keeps (a subspace, say)."""

    def amplify(self, guarantee: Guarantee) -> Guarantee:
        """What holds of the messages as the server sees them; `setup` has been called."""
        return guarantee

    def encode(self, messages: Tensor, round_: Round, source: Source) -> tuple[Any, int]:
        """What travels, from private messages [C, D'], and its size in bytes over all participants."""
        return messages, messages.numel() * 4

    def decode(self, sent: Any, round_: Round) -> Tensor:
        """What the server sees, [C, D']."""
        messages: Tensor = sent
        return messages

    def downlink(self, round_: Round) -> int:
        """Bytes broadcast to all participants."""
        return len(round_.clients) * round_.start.numel() * 4

    def diagnostics(self) -> dict[str, float]:
        """Remarkable numbers of the round just done, for the record; the same names every round."""
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass
