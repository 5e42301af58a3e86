"""What a part says of itself before a run. `wire` (wiring.py) reads it all, and refuses what does not fit.

Every default is the strict one: what a part does not say, it is not trusted with. A part has its facts as the
attribute `facts`, of its class or, where options decide, set by `__init__`.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedpriv.mechanisms.participation import FixedNumber, Participation

if TYPE_CHECKING:
    from fedpriv.aggregators.base import Aggregator

# What leaves a client.
Kind = Literal["updates", "models", "answers", "shares"]
UPDATES: frozenset[Kind] = frozenset({"updates"})  # how far the client moved
MODELS: frozenset[Kind] = UPDATES | {"models"}  # or whole models
MEANS: frozenset[Kind] = MODELS | {"answers"}  # or models of two-point weights: right on average only
SHARES: frozenset[Kind] = frozenset({"shares"})  # integers modulo 2^bits, private only in their sum

# What gets lost of the order of messages: nothing, whose row is whose, or even which values are one row.
Order = Literal["nothing", "rows", "values"]


@dataclass(frozen=True, kw_only=True)
class MechanismFacts:
    unit: Literal["none", "sample", "client"]  # what is protected
    replaces: bool  # whether neighbours are told apart by replacing data, not by adding or removing it
    participation: Participation  # who takes part, and who pays for it
    sends: Kind = "updates"
    weights: Literal["any", "constant", "bounded"] = "bounded"
    # "constant": they must not depend on who takes part; "bounded": nor may one exceed `largest_weight`,
    # which the noise is calibrated to.
    passes_on: bool = False  # whether messages leave as they came: no clipping, no noise of their own
    bits: int | None = None  # of a share

    @property
    def per_sample(self) -> bool:
        """Whether local training clips single samples."""
        return self.unit == "sample"


@dataclass(frozen=True, kw_only=True)
class AlgorithmFacts:
    raw_gradients: bool = False  # whether it sends something made of gradients no mechanism has seen
    personal: bool = False  # whether clients start from models of their own, trained without protection
    adds_up: bool = False  # whether errors of single messages stay in what it keeps, round after round
    needs_weights: bool = False  # whether it must know how the aggregator weighs clients
    keeps: tuple[str, ...] = ()  # names of vectors of the model's size in the store, zero at first
    not_covered: tuple[str, ...] = ()  # what it takes as public that a DP variant does not protect


@dataclass(frozen=True, kw_only=True)
class AggregatorFacts:
    takes: frozenset[Kind] = UPDATES  # what it makes something sensible of
    symmetric: Order = "nothing"  # what it does not need: "rows" whose a row is, "values" nor which are one
    bounded: bool = False  # whether no client ever weighs more than `largest_weight`
    subspace: bool = False  # whether it keeps one that clients can project onto
    not_covered: tuple[str, ...] = ()  # what it takes as public that a DP variant does not protect


@dataclass(frozen=True, kw_only=True)
class UploadFacts:
    takes: frozenset[Kind] = frozenset()  # what it carries; shares: showing the server only their sum
    mixes: Order = "values"  # what gets lost of the order of messages
    needs_subspace: bool = False  # whether clients project onto the aggregator's
    shows_cohort: bool = True  # whether what is released tells outsiders how many took part
    sum_only: bool = False  # whether single messages never exist, so that noise may be drawn for their sum
    tolerance: float = 0.0  # share of the participants that may vanish before the sum


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What a part may rely on of the others."""

    sends: Kind = "updates"  # what the aggregator is given
    bits: int | None = None  # of a share
    constant_weights: bool = True  # whether weights must not depend on who takes part
    bounded_weights: bool = True  # whether the noise is calibrated to one client's largest weight
    participation: Participation = field(default_factory=FixedNumber)
    projected: bool = False  # whether private clients' updates arrive projected onto the last subspace
    sum_only: bool = False
    tolerance: float = 0.0
    aggregator: "Aggregator | None" = None  # to be read: its weights, its subspace


ALONE = Wiring()  # of a part that is tried out by itself
