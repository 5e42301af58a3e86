"""Who takes part in a round, and whose ledger pays for it. A mechanism chooses one in its facts.

Where a schedule fixes beforehand who takes part when, nothing is drawn and only participants pay.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Setting


@dataclass(frozen=True)
class Participation(ABC):
    def clients(
        self, number: int, eligible: np.ndarray, setting: Setting, source: Source
    ) -> tuple[np.ndarray, float]:
        """The clients of round `number` in ascending order, and the public number to normalise by."""
        if setting.schedule is not None:
            dealt = setting.schedule[number]
            return dealt[eligible[dealt]], float(len(dealt))
        return self.draw(eligible, setting, source)

    @abstractmethod
    def draw(self, eligible: np.ndarray, setting: Setting, source: Source) -> tuple[np.ndarray, float]:
        """The same without a schedule."""

    def charged(self, clients: np.ndarray, setting: Setting) -> np.ndarray:
        """Whose ledger pays for a round of these clients."""
        return clients

    def rounds_charged(self, setting: Setting) -> int:
        """How many rounds a client will have paid for at the end of a run."""
        return setting.planned

    @property
    def secret(self) -> bool:
        """Whether the charge rests on nobody knowing who takes part."""
        return False

    @property
    def independent(self) -> bool:
        """Whether clients join independently of each other, which drawing a round again would spoil."""
        return False

    @property
    def fixed(self) -> bool:
        """Whether who takes part when must be known before round 0."""
        return False


@dataclass(frozen=True)
class Fixed(Participation):
    """Nothing is drawn: a schedule says who takes part when, or everybody does every time."""

    def draw(self, eligible: np.ndarray, setting: Setting, source: Source) -> tuple[np.ndarray, float]:
        return np.flatnonzero(eligible), float(setting.clients)

    def rounds_charged(self, setting: Setting) -> int:
        return setting.most

    @property
    def fixed(self) -> bool:
        return True


@dataclass(frozen=True)
class FixedNumber(Participation):
    """A fixed number without replacement: the server sees who takes part, nothing is amplified."""

    ends: bool = True  # whether a client opts out when its budget is spent; else it pays whenever drawn

    def draw(self, eligible: np.ndarray, setting: Setting, source: Source) -> tuple[np.ndarray, float]:
        wanted, able = max(1, round(setting.sample_rate * setting.clients)), np.flatnonzero(eligible)
        chosen = able[source.uniforms(able, 1)[:, 0].numpy().argsort(kind="stable")[:wanted]]
        return np.sort(chosen), float(len(chosen))

    def rounds_charged(self, setting: Setting) -> int:
        return setting.planned if self.ends else setting.most


@dataclass(frozen=True)
class Poisson(Participation):
    """Every client joins at the sampling rate. While that is a secret everybody pays every round, at the
    sampled rate; an observer who sees who takes part (`seen`) makes participants pay, in full."""

    seen: bool = False

    def draw(self, eligible: np.ndarray, setting: Setting, source: Source) -> tuple[np.ndarray, float]:
        drawn = source.below(setting.sample_rate, np.arange(setting.clients), 1)[:, 0].numpy()
        return np.flatnonzero(drawn & eligible), setting.sample_rate * setting.clients

    def charged(self, clients: np.ndarray, setting: Setting) -> np.ndarray:
        return clients if self.seen or setting.schedule is not None else np.arange(setting.clients)

    def rounds_charged(self, setting: Setting) -> int:
        return setting.planned if self.seen else setting.most

    @property
    def secret(self) -> bool:
        return not self.seen

    @property
    def independent(self) -> bool:
        return True
