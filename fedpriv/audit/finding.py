"""What an audit found: one line a check, and what it may be held against."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["passed", "VIOLATED", "not asked"]


@dataclass(frozen=True)
class Finding:
    """One check. `measured` may not exceed `allowed`; None: there is no such number."""

    check: str
    verdict: Verdict
    text: str  # what was seen and where: round, client, tensor
    measured: float | None = None
    allowed: float | None = None


@dataclass(frozen=True)
class Result:
    """What one kind of audit has to say. `bound` is a lower bound on epsilon, or an estimate of it."""

    kind: str
    says: str  # one sentence for the screen
    findings: tuple[Finding, ...] = ()
    bound: float | None = None
    is_bound: bool = True  # false: an estimate, which proves nothing
    against: float | None = None  # the epsilon that may not be exceeded; None: any is allowed
    claimed: float | None = None  # the epsilon the method states
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def violated(self) -> bool:
        if any(f.verdict == "VIOLATED" for f in self.findings):
            return True
        known = self.bound is not None and self.against is not None
        return self.is_bound and known and self.bound > self.against  # type: ignore[operator]

    def report(self) -> dict[str, Any]:
        return {**asdict(self), "violated": self.violated}


def judged(
    check: str, good: bool, text: str, measured: float | None = None, allowed: float | None = None
) -> Finding:
    return Finding(check, "passed" if good else "VIOLATED", text, measured, allowed)


def unasked(check: str, why: str) -> Finding:
    return Finding(check, "not asked", why)


def worst_of(found: list[Finding]) -> list[Finding]:
    """Of checks that were made several times the worst, in order."""
    kept: dict[str, Finding] = {}
    for one in found:
        if one.check not in kept or one.verdict == "VIOLATED":
            kept[one.check] = one
    return list(kept.values())
