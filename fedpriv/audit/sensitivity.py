"""`audit sensitivity`: is what is released moved by one sample or client no more than its noise is for?

Keys are fixed and noise is off, so everything here is exact up to rounding: one sample (one_sample.py) or
client (one_client.py) is taken out, in many choices and with the worst data there are, and the move of what
is released is compared with its noise (moves.py). Then: is the noise of rounds, clients, steps, tensors and
keys uncorrelated (fresh.py)? Is what is drawn drawn as charged (sampling.py), are keys and rows of noise used
once (keys.py), and is it all paid for (paid.py)?

Where the release is depends on where the noise is: in the local steps, in what leaves a client, in the sum of
shares, or on the server. What comes after must depend on the data through it alone.
"""

from collections.abc import Callable

from fedpriv.audit import keys, one_client, one_sample, paid, sampling, stage
from fedpriv.audit.finding import Finding, Result, unasked
from fedpriv.audit.taps import Bench
from fedpriv.session.screen import Notes


def audit(bench: Bench, choices: int = 24) -> Result:
    """All of it, for any composition."""
    guarantee = bench.trainer.ledger.guarantee
    if bench.unit == "none":
        says = "no differential privacy is promised (unit none): any move is allowed, nothing to check"
        return Result("sensitivity", says, (unasked("sensitivity", says),))
    found: list[Finding] = []
    notes = Notes("audit sensitivity: step", 5)
    parts: list[Callable[[], list[Finding]]] = [
        lambda: keys.audit(bench),
        lambda: sampling.audit(bench),
        lambda: one_sample.audit(bench, choices) if _in_steps(bench) else one_client.audit(bench, choices),
        lambda: paid.audit(bench),
        lambda: stage.audit(bench),
    ]
    for number, part in enumerate(parts, 1):
        found += part()
        notes.show(number)
    wrong = [f for f in found if f.verdict == "VIOLATED"]
    passed = sum(f.verdict == "passed" for f in found)
    says = f"{passed} checks passed" if not wrong else f"{len(wrong)} of {passed + len(wrong)} checks failed"
    if guarantee.provable is None:
        says += "; nothing is called provable of this run, so its noise is held against nothing"
    largest = max(
        (f.measured for f in found if f.check.startswith("move") and f.measured is not None), default=None
    )
    return Result("sensitivity", says, tuple(found), details={"largest_move_over_bound": largest})


def _in_steps(bench: Bench) -> bool:
    """Whether local training itself adds the noise."""
    if bench.unit != "sample":
        return False
    bench.reset()
    heard = bench.round(train=False, able=bench.everyone())
    return bool(heard.works) and heard.works[-1].private is not None
