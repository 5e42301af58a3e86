"""Exact Poisson and Skellam numbers from random bits.

torch.poisson compares floats, log-gammas among them whose errors grow with the rate; on CUDA it even rounds a
normal number where the rate is large. Here a candidate is made of bits alone and accepted with its true
probability:

  candidate   to a random side of the mode m, in the first block of 2^s numbers with probability 1/2, in the
              next with 1/4, and so on, anywhere in its block alike: powers of two, nothing is rounded;
  acceptance  if V < p(k) 2^block / (p(m) c), where V is uniform with as many bits as it takes, p the Poisson
              probability and c a bound that keeps this below one. Floats decide where their error cannot
              matter; what is closer than that, about once in 10^9, is decided by mpmath.

So the noise is what is accounted for, at any rate and on any machine, and its tail ends only where less than
10^-60 is left. `Bits` is any source of uniform 64-bit words; from a secure one comes secure noise.
"""

import math
from collections.abc import Callable

import mpmath
import numpy as np
from scipy.special import gammaln

Bits = Callable[[int], np.ndarray]  # how many -> uniform words, uint64 [n]

_BATCH = 1 << 15  # candidates at a time: few enough to stay in cache
_BLOCKS = 40  # beyond them nothing is likely enough to bound
_LARGE = 1000.0  # rates from which Stirling's series is exact to the last digit wherever it matters
_ERROR = 2.0**-48  # of floats, times a number's distance from the rate and something for the constants
_COARSE = 1 << 36  # a word below is too few bits to compare
_LOG2 = math.log(2)


def skellam(count: int, variance: float, bits: Bits) -> np.ndarray:
    """`count` differences of two Poisson variables of half the variance each, int64."""
    plus, minus = (poisson(count, variance / 2, bits) for _ in range(2))
    difference: np.ndarray = plus - minus
    return difference


def poisson(count: int, rate: float, bits: Bits) -> np.ndarray:
    """`count` independent Poisson variables, int64."""
    drawn = np.zeros(count, dtype=np.int64)
    if rate == 0:
        return drawn
    law, done = _Law(rate), 0
    while done < count:
        candidates = min(_BATCH, 3 * (count - done) + 16)
        some = law.accepted(candidates, bits)[: count - done]
        drawn[done : done + len(some)] = some
        done += len(some)
    return drawn


class _Law:
    def __init__(self, rate: float):
        self.rate, self.mode = rate, math.floor(rate)
        self.shift = max(0, round(math.log2(rate) / 2))  # blocks about as wide as a deviation
        # p falls away from the mode: a block's largest is its first; log p is concave: it is among these.
        block = np.arange(_BLOCKS)
        starts = np.stack([self.mode + (block << self.shift), self.mode - 1 - (block << self.shift)])
        height = self.log_ratio(starts.clip(min=0)) + block * _LOG2
        self.bound = float(height[starts >= 0].max()) + 1e-6  # log c

    def log_ratio(self, k: np.ndarray) -> np.ndarray:
        """log p(k) / p(m), in floats."""
        ratio: np.ndarray = self._log(k) - self._log(np.array([self.mode]))
        return ratio

    def _log(self, k: np.ndarray) -> np.ndarray:
        """log p(k) and a constant."""
        found: np.ndarray
        if self.rate < _LARGE:
            found = k * math.log(self.rate) - gammaln(k + 1.0)
        else:
            away, k = k - self.rate, np.maximum(k, 1).astype(np.float64)
            part = np.log1p(away.clip(min=1 - self.rate) / self.rate)
            found = away - k * part - np.log(k) / 2 - 1 / (12 * k)
        return found

    def accepted(self, candidates: int, bits: Bits) -> np.ndarray:
        """Those of so many candidates that are accepted."""
        words = bits(2 * candidates)
        place, word = words[:candidates], words[candidates:]
        left = (place & np.uint64(1)).astype(bool)
        offset = (place >> np.uint64(1)) & np.uint64((1 << self.shift) - 1)
        coins = place >> np.uint64(1 + self.shift)  # the block's number: how many end in a row with 0
        lowest = (coins & (~coins + np.uint64(1))).astype(np.float64)
        block = np.frexp(lowest)[1].astype(np.int64) - 1
        beside = (block << self.shift) + offset.astype(np.int64)
        k = np.where(left, self.mode - 1 - beside, self.mode + beside)
        possible = (k >= 0) & (coins > 0)
        k, block, word = k[possible], block[possible], word[possible]

        bar = self.log_ratio(k) + block * _LOG2 - self.bound
        above = np.log(word.astype(np.float64) + 0.5) - 64 * _LOG2 - bar  # log V against its bar
        good = above < 0
        error = _ERROR * (1e4 + np.abs(k - self.rate))
        for i in np.flatnonzero((np.abs(above) <= error) | (word < _COARSE)):
            good[i] = self.decide(int(k[i]), int(block[i]), int(word[i]), bits)
        kept: np.ndarray = k[good]
        return kept

    def decide(self, k: int, block: int, word: int, bits: Bits) -> bool:
        """Whether V, which begins with the word, is below its bar, with as many more bits as it takes."""
        length = 64
        while True:
            with mpmath.workprec(length + 128):
                ratio = (k - self.mode) * mpmath.log(self.rate)
                ratio += mpmath.loggamma(self.mode + 1) - mpmath.loggamma(k + 1)
                bar = mpmath.ldexp(mpmath.exp(ratio + block * mpmath.log(2) - self.bound), length)
                if word + 1 < bar:
                    return True
                if word > bar:
                    return False
            word, length = (word << 64) | int(bits(1)[0]), length + 64
