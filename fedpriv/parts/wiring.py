"""Whether a run's parts fit together, decided in one place from what each says of itself (declarations.py).

`wire` reads facts and writes nothing: the same parts give the same wiring, or the same one-line refusal.
"""

from fedpriv.aggregators.base import Aggregator, Linear
from fedpriv.algorithms.base import Algorithm
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.parts.base import Part
from fedpriv.parts.declarations import (
    AggregatorFacts,
    AlgorithmFacts,
    Kind,
    MechanismFacts,
    Order,
    UploadFacts,
    Wiring,
)
from fedpriv.rounds.setting import Setting
from fedpriv.uploads.base import Upload

_WORDS: dict[Kind, str] = {
    "updates": "updates",
    "models": "whole models",
    "answers": "models with a two-point answer for every weight",
    "shares": "integers that are private only in their sum (dp=ddp)",
}
_LOST: tuple[Order, ...] = ("nothing", "rows", "values")  # ever more


def wire(
    mechanism: Mechanism, algorithm: Algorithm, aggregator: Aggregator, upload: Upload, setting: Setting
) -> Wiring:
    """What the parts may rely on of each other, or a UserError that says why they do not fit."""
    for group, part, kind in (
        ("dp_variant", mechanism, MechanismFacts),
        ("algorithm", algorithm, AlgorithmFacts),
        ("aggregator", aggregator, AggregatorFacts),
        ("upload", upload, UploadFacts),
    ):
        _declared(group, part, kind)
    _message(algorithm, mechanism)
    _travels(mechanism, aggregator, upload)
    _mixed(aggregator, upload)
    _weighed(mechanism, algorithm, aggregator)
    _cohort(mechanism, aggregator, upload, setting)
    facts = mechanism.facts
    return Wiring(
        sends=facts.sends,
        bits=facts.bits,
        constant_weights=facts.weights != "any",
        bounded_weights=facts.weights == "bounded",
        participation=facts.participation,
        projected=upload.facts.needs_subspace,
        sum_only=upload.facts.sum_only,
        tolerance=upload.facts.tolerance,
        aggregator=aggregator,
    )


def _declared(group: str, part: Part, kind: type) -> None:
    if not isinstance(getattr(part, "facts", None), kind):
        raise UserError(
            f"{group}: {type(part).__name__} does not say what it needs and bounds; give it "
            f"`facts = {kind.__name__}(...)` (fedpriv/declarations.py)"
        )


def _message(algorithm: Algorithm, mechanism: Mechanism) -> None:
    """What the algorithm makes of its data, under what the mechanism protects."""
    wants, name, unit = algorithm.facts, type(algorithm).__name__, mechanism.facts.unit
    if wants.personal and unit == "sample":
        raise UserError(
            f"algorithm: {name} trains its personal models on raw gradients, which dp=ldp does not allow; "
            "use dp=cdp, under which they stay at home unprotected"
        )
    if wants.adds_up and not mechanism.facts.passes_on:
        raise UserError(
            f"algorithm: {name}'s control variates add up what this dp_variant's clipping and noise do to "
            "messages, and never forget it; use dp=ldp or algorithm=fedavg"
        )
    if wants.raw_gradients and unit != "none":
        raise UserError(
            f"algorithm: {name} with these options sends what is made of raw gradients, which no dp_variant "
            "here makes private; use algorithm.option=II, whose variates follow from what is private already"
        )


def _travels(mechanism: Mechanism, aggregator: Aggregator, upload: Upload) -> None:
    """Whether what clients send can be carried and aggregated."""
    sent = mechanism.facts.sends
    carried, taken = sent in upload.facts.takes, sent in aggregator.facts.takes
    if sent == "shares" and not (carried and taken):
        raise UserError(
            "dp_variant=ddp is private only in the sum: it needs upload=secure_sum and aggregator=sum, "
            "which it chooses unless the command line says otherwise"
        )
    if not taken:
        what = " and ".join(_WORDS[k] for k in _WORDS if k in aggregator.facts.takes) or "nothing it names"
        raise UserError(
            f"aggregator: {type(aggregator).__name__} makes something of {what}, but this dp_variant sends "
            f"{_WORDS[sent]}, which only a mean makes a model of; use aggregator=mean"
        )
    if not carried:
        what = " and ".join(_WORDS[k] for k in _WORDS if k in upload.facts.takes) or "nothing it names"
        raise UserError(
            f"upload: {type(upload).__name__} carries {what}, and this dp_variant sends {_WORDS[sent]}; use "
            "upload=plain"
        )
    if upload.facts.needs_subspace and not aggregator.facts.subspace:
        raise UserError("upload=projected: only aggregator=pfa_plus keeps a subspace; choose upload=plain")


def _mixed(aggregator: Aggregator, upload: Upload) -> None:
    """Whether the aggregator can do without what gets lost on the way."""
    if "shares" in upload.facts.takes:  # a sum arrives
        return
    if _LOST.index(aggregator.facts.symmetric) < _LOST.index(upload.facts.mixes):
        raise UserError(
            f"upload: {type(upload).__name__} hides who sent what, which aggregator "
            f"{type(aggregator).__name__} needs; use aggregator=mean, or upload=plain"
        )


def _weighed(mechanism: Mechanism, algorithm: Algorithm, aggregator: Aggregator) -> None:
    name = type(aggregator).__name__
    if algorithm.facts.needs_weights and not isinstance(aggregator, Linear):
        raise UserError(
            f"algorithm: {type(algorithm).__name__} averages with weights, and aggregator {name} has none; "
            "use aggregator=size or mean, or set algorithm.effective_steps"
        )
    if mechanism.facts.weights == "bounded" and not aggregator.facts.bounded:
        raise UserError(
            f"aggregator {name} does not bound one client's weight, which this dp_variant's noise is "
            "calibrated to; use aggregator=mean or aggregator=size"
        )


def _cohort(mechanism: Mechanism, aggregator: Aggregator, upload: Upload, setting: Setting) -> None:
    """Whether who takes part stays as it is drawn, and a secret where the charge rests on that."""
    participation = mechanism.facts.participation
    if participation.secret and upload.facts.shows_cohort:
        raise UserError(
            f"upload: {type(upload).__name__} shows outsiders how many take part (who vanishes shows in the "
            "noise and in refused rounds), so sampling amplifies nothing; use dp_variant.against=server with "
            "dp=ddp, or upload.dropout=0 and upload.tolerance=0"
        )
    redrawn = type(aggregator).accepts is not Aggregator.accepts
    drawn = setting.schedule is None and setting.sample_rate < 1
    if participation.fixed and drawn:
        raise UserError(
            f"sample_rate={setting.sample_rate:g}: this dp_variant counts on who takes part when being fixed "
            "beforehand, and nothing is amplified; set participations (and separation), or sample_rate=1"
        )
    if participation.fixed and redrawn:
        raise UserError(
            f"aggregator {type(aggregator).__name__} has rounds drawn again until it accepts them, but this "
            "dp_variant counts on who takes part when being fixed beforehand; use aggregator=mean or size"
        )
    if redrawn and drawn and participation.independent:
        raise UserError(
            f"aggregator {type(aggregator).__name__} has rounds drawn again until it accepts them, but this "
            "dp_variant is charged for Poisson sampling, which that is not; use sample_rate=1, "
            "participations, or an aggregator that takes any round"
        )
