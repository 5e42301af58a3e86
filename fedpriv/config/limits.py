"""What a number may be. Every number a user can set has limits, which its help names.

An option's are written at its annotation: `dropout: Annotated[float, Within(least=0, most=1)]`. Where nothing
is written the widest hold: float32 ends at 3.4e38, and what is squared or multiplied on the way must fit too.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

LARGEST = 1e12  # of any number
MOST = 2**31 - 1  # of any whole number, and of the weights of a model
LONGEST = 1000  # characters of a text


@dataclass(frozen=True)
class Within:
    """Limits of a number; those left open are the widest."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def words(self) -> str:
        """As it is said in a help: 1 to 100; above 0, at most 1."""
        if self.least is not None and self.most is not None:
            return f"{_shown(self.least)} to {_shown(self.most)}"
        said = (
            ("at least", self.least),
            ("above", self.above),
            ("at most", self.most),
            ("below", self.below),
        )
        return ", ".join(f"{word} {_shown(value)}" for word, value in said if value is not None)

    def broken(self, value: Any) -> str | None:
        """What a number has to be and is not."""
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        least, most = self.least, self.most
        if least is None and self.above is None:
            least = -LARGEST
        if most is None and self.below is None:
            most = LARGEST
        if least is not None and value < least:
            return f"must be at least {_shown(least)}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {_shown(self.above)}"
        if most is not None and value > most:
            return f"must be at most {_shown(most)}"
        if self.below is not None and value >= self.below:
            return f"must be less than {_shown(self.below)}"
        return None


def _shown(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 2**63 else f"{value:g}"


ANY = Within(least=-LARGEST, most=LARGEST)
WHOLE = Within(least=-MOST, most=MOST)

Count = Annotated[int, Within(least=1, most=1_000_000)]  # of clients, rounds, samples
Width = Annotated[int, Within(least=1, most=65_536)]  # of a layer
Fraction = Annotated[float, Within(least=0, most=1)]
Positive = Annotated[float, Within(above=0, most=1e6)]
Epsilon = Annotated[float, Within(least=1e-4, most=1e6)]  # a privacy budget
Momentum = Annotated[float, Within(least=0, below=1)]
NotNegative = Annotated[float, Within(least=0, most=1e6)]


def cut(value: object, longest: int = 120) -> str:
    """A value as an error message repeats it: cut to a readable length, on one line."""
    try:
        text = " ".join(str(value).split())
    except ValueError:  # a whole number of more digits than Python writes out
        return "a number of thousands of digits"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
