"""Many values, each protected on its own: what they cost together, and what shuffling provably buys.

A client that sends k values, each through a pure epsilon_0 local randomiser, spends k epsilon_0. If each
value is one of n of its kind in uniformly random order, it is (epsilon, delta)-DP with

    epsilon <= log(1 + (e^e0 - 1) / (e^e0 + 1) * 8 (sqrt(e^e0 log(4 / delta) / n) + e^e0 / n)),
    provided that e0 <= log(n / (16 log(2 / delta)))

(Feldman, McMillan and Talwar 2021, Theorem 3.1), for data sets that differ in all of one client's data. The k
amplified values are composed (Kairouz, Oh and Viswanath 2015, Theorem 3.4), with half of delta for that and
the other half shared among them. The theorem is about one common randomiser: clients with different epsilons
are outside of it.
"""

import math
from dataclasses import dataclass

import numpy as np

BOUND = "Feldman, McMillan and Talwar 2021, Theorem 3.1"


def largest_local_epsilon(crowd: int, delta: float) -> float:
    """Up to where the bound holds for `crowd` shuffled reports; minus infinity or negative: nowhere."""
    return math.log(crowd / (16 * math.log(2 / delta))) if crowd else -math.inf


def shuffled_epsilon(local: float, crowd: int, delta: float) -> float | None:
    """Epsilon of one report among `crowd`, or None where the bound does not hold."""
    if local > largest_local_epsilon(crowd, delta):
        return None
    grown = math.exp(local)
    inner = math.sqrt(grown * math.log(4 / delta) / crowd) + grown / crowd
    return math.log1p(math.tanh(local / 2) * 8 * inner)


def composed(epsilon: float, times: int, delta: float) -> float:
    """`times` epsilon-DP releases together, allowing for delta: the better of two forms."""
    mean = times * epsilon * math.tanh(epsilon / 2)
    return min(times * epsilon, mean + epsilon * math.sqrt(2 * times * math.log(1 / delta)))


@dataclass(frozen=True)
class Reports:
    """`number` values per participation, each `local`-DP on its own; a charge that has it has nothing else.

    Each is shuffled among `crowd` reports of its kind, itself included; None: there is no shuffling.
    """

    local: float
    number: int
    crowd: int | None = None

    def pure(self, count: int) -> float:
        """Basic composition, which needs no delta and no anonymity."""
        return self.local * self.number * count

    def with_delta(self, count: int, delta: float) -> float:
        """Composition that uses delta, still without anonymity."""
        return composed(self.local, self.number * count, delta)

    def amplified(self, count: int, delta: float) -> float | None:
        """With the shuffle; None where the bound does not hold."""
        each = self.one_amplified(count, delta)
        return None if each is None else composed(each, self.number * count, delta / 2)

    def one_amplified(self, count: int, delta: float) -> float | None:
        """One report's epsilon at its share of delta."""
        return shuffled_epsilon(self.local, self.crowd or 0, self.share(count, delta))

    def share(self, count: int, delta: float) -> float:
        """One report's part of the delta that amplification takes."""
        return delta / (2 * self.number * count)

    def epsilon(self, count: int, delta: float) -> float:
        if not self.crowd:
            return self.pure(count)
        amplified = self.amplified(count, delta)
        return self.pure(count) if amplified is None else min(self.with_delta(count, delta), amplified)

    def rdp(self) -> np.ndarray:
        raise NotImplementedError("reports are composed as a whole and with nothing else")

    def known(self) -> None:
        return None
