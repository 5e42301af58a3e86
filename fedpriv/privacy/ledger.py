"""The ledger: what every client has spent, charged by actual participation and asked before each round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from fedpriv.privacy.accountants import Accountant, beyond, curve_of
from fedpriv.privacy.events import Charge


@dataclass(frozen=True)
class Observer:
    """Somebody who sees a part of what is sent, and what that tells about a client."""

    sees: str
    relation: str  # which data sets are neighbours
    sampler: str  # what its amplification rests on
    charges: Sequence[Charge]  # one of which `Guarantee.kinds` picks
    pays: Literal["participants", "everyone"]  # in a round
    planned: int  # how often a client will have paid at the end of a run


@dataclass(frozen=True)
class Guarantee:
    """What a mechanism promises each client, in formal terms.

    `kinds[k]` picks client k's charge per participation out of `claimed` and `provable`. `claimed` is the
    method's own accounting; `provable` what we can prove of the same releases, or None where nothing can be.
    """

    unit: str  # "sample", "client" or "none"
    relation: str  # which data sets are neighbours
    sampler: str  # what the accountant's amplification rests on
    noise: np.ndarray  # [K] noise multiplier of each client
    kinds: np.ndarray  # [K]
    claimed: Sequence[Charge]
    provable: Sequence[Charge] | None
    flaws: tuple[str, ...] = ()  # why `provable` is None or differs from the claim
    if_mended: Sequence[Charge] | None = None  # what would hold without the flaws that make it None
    not_covered: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    against: str | None = None  # the observer that budgets are kept against, where there are several
    observers: Mapping[str, Observer] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """Something sent once, before round 0 and on top of what training sends."""

    what: str
    relation: str  # which data sets are neighbours for `epsilon`
    epsilon: float  # of this release alone, at the run's delta
    charges: Sequence[Charge]  # the same for the training's neighbours, to compose: one for all, or for each
    public: str = ""  # what is sent with it as it is: neighbours must agree in it, which narrows them
    flaws: tuple[str, ...] = ()  # what is sent with it and not protected: then nothing is provable of the run
    not_covered: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def charge(self, client: int) -> Charge:
        return self.charges[client if len(self.charges) > 1 else 0]

    def report(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "neighbouring_relation": self.relation,
            "epsilon_alone": _number(self.epsilon),
            **self.details,
        }


class Ledger:
    def __init__(self, guarantee: Guarantee, budgets: np.ndarray, delta: float, accountant: Accountant):
        self.guarantee, self.budgets, self.delta = guarantee, budgets, delta
        self.accountant = accountant
        self.participations = np.zeros(len(budgets), dtype=np.int64)  # that are charged
        self.present = np.zeros(len(budgets), dtype=np.int64)  # rounds really taken part in
        self.rounds = 0
        self.releases: list[Release] = []

    def release(self, release: Release) -> None:
        """Enter what is sent once. The budget is the training's: it neither pays for this nor forbids it."""
        self.releases.append(release)
        before = self.guarantee
        narrower = release.public and before.unit != "none"
        self.guarantee = replace(
            before,
            relation=f"{before.relation}, {release.public}" if narrower else before.relation,
            provable=None if release.flaws else before.provable,
            if_mended=before.provable if release.flaws and before.provable else before.if_mended,
            flaws=before.flaws + release.flaws,
            not_covered=before.not_covered + release.not_covered,
        )

    def epsilons(
        self, charges: Sequence[Charge] | None, counts: np.ndarray, releases: Sequence[Release] | None = None
    ) -> np.ndarray:
        """Epsilon of every client for the given numbers of participations and all releases, [K]."""
        releases = self.releases if releases is None else releases
        if charges is None:
            return np.where((counts > 0) | bool(releases), np.inf, 0.0)
        kinds, (firsts, where) = self.guarantee.kinds, self._alike(counts, releases)
        values = []
        for k in firsts:
            once = tuple(e for r in releases for e in r.charge(k))
            values.append(self.accountant.epsilon(charges[kinds[k]], counts[k].item(), self.delta, once))
        return np.asarray(np.array(values)[where])

    def _alike(self, counts: np.ndarray, releases: Sequence[Release]) -> tuple[list[int], np.ndarray]:
        """Of clients that cost the same, one each; and which of these answers for a client, [K]."""
        own = any(len(r.charges) > 1 for r in releases)
        alike = np.arange(len(counts)) if own else self.guarantee.kinds * (counts.max() + 1) + counts
        _, firsts, where = np.unique(alike, return_index=True, return_inverse=True)
        return firsts.tolist(), where

    def claimed(self, counts: np.ndarray | None = None) -> np.ndarray:
        return self.epsilons(self.guarantee.claimed, self.participations if counts is None else counts)

    def provable(self, counts: np.ndarray | None = None) -> np.ndarray:
        return self.epsilons(self.guarantee.provable, self.participations if counts is None else counts)

    def if_mended(self, counts: np.ndarray | None = None) -> np.ndarray | None:
        if self.guarantee.if_mended is None:
            return None
        return self.epsilons(self.guarantee.if_mended, self.participations if counts is None else counts)

    def eligible(self) -> np.ndarray:
        """Which clients can afford one more participation, [K] bool; without privacy there is no budget."""
        if self.guarantee.unit == "none":
            return np.ones(len(self.budgets), dtype=bool)
        training = self.epsilons(self.guarantee.claimed, self.participations + 1, ())
        return training <= self.budgets * (1 + 1e-9)

    def charge(self, clients: np.ndarray, present: np.ndarray | None = None) -> None:
        """One round: who pays for it, and who was there if that is not the same."""
        self.participations[clients] += 1
        self.present[clients if present is None else present] += 1
        self.rounds += 1

    def observed(self, name: str, planned: bool = False) -> np.ndarray:
        """Epsilon of every client against one of the observers, so far or at the planned end, [K]."""
        observer = self.guarantee.observers[name]
        everyone = np.full(len(self.budgets), observer.planned if planned else self.rounds)
        counts = everyone if planned or observer.pays == "everyone" else self.present
        return self.epsilons(None if self.guarantee.provable is None else observer.charges, counts)

    def _ends(self, counts: np.ndarray) -> float:
        """The most that noise drawn in floats takes out of a client's delta because it ends somewhere."""
        charges, kinds = self.guarantee.provable, self.guarantee.kinds.tolist()
        if charges is None:
            return 0.0
        return max(beyond(charges[k], n) for k, n in set(zip(kinds, counts.tolist(), strict=True)))

    def curve(self, counts: np.ndarray | None = None) -> np.ndarray | None:
        """Renyi divergences at ORDERS that hold for every client; None where there is no such curve."""
        counts, charges = self.participations if counts is None else counts, self.guarantee.provable
        if charges is None:
            return None
        firsts, _ = self._alike(counts, self.releases)
        once = [tuple(e for r in self.releases for e in r.charge(k)) for k in firsts]
        kinds = self.guarantee.kinds
        try:
            curves = [
                curve_of(charges[kinds[k]], int(counts[k]), o) for k, o in zip(firsts, once, strict=True)
            ]
        except NotImplementedError:  # an epsilon that was given directly
            return None
        return np.asarray(np.max(curves, axis=0))

    def state(self) -> dict[str, Any]:
        counts = {"participations": self.participations, "present": self.present}
        return {"rounds": self.rounds, **{k: torch.as_tensor(v.copy()) for k, v in counts.items()}}

    def load(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]
        self.participations[:] = state["participations"].numpy()
        self.present[:] = state["present"].numpy()

    def report(self, *, planned: np.ndarray | None = None, noise_seeded: bool) -> dict[str, Any]:
        """The contents of privacy.json; with `planned` the forecast for those participations."""
        counts = self.participations if planned is None else planned
        guarantee = self.guarantee
        claimed, provable = self.claimed(counts), self.provable(counts)
        mended = self.if_mended(counts)
        private = guarantee.unit != "none"
        observers = {
            name: {
                "sees": o.sees,
                "neighbouring_relation": o.relation,
                "sampler": o.sampler,
                "epsilon_max": _number(self.observed(name, planned is not None).max()),
            }
            for name, o in guarantee.observers.items()
        }
        sent_once = {}
        if self.releases:
            training = self.epsilons(guarantee.claimed, counts, ())
            sent_once = {
                "releases": [r.report() for r in self.releases],
                "epsilon_claimed_of_training_alone_max": _number(training.max()),
            }
        return {
            "unit": guarantee.unit,
            "neighbouring_relation": guarantee.relation,
            "sampler": guarantee.sampler,
            "accountant": self.accountant.name,
            "delta": self.delta,
            "epsilon_budget_max": _number(self.budgets.max()) if private else None,
            "epsilon_claimed_max": _number(claimed.max()),
            "epsilon_provable_max": _number(provable.max()),
            **({"against": guarantee.against, "observers": observers} if observers else {}),
            "no_guarantee": not np.isfinite(provable.max()),
            "claim_holds": bool((provable <= claimed * (1 + 1e-6)).all()),
            "flaws": list(guarantee.flaws),
            "epsilon_if_mended_max": None if mended is None else _number(mended.max()),
            "not_covered": [*guarantee.not_covered, *([SHARED] if private and noise_seeded else [])],
            "noise": "none" if not private else _GENERATOR[noise_seeded],
            "noise_seeded": noise_seeded if private else None,
            "delta_of_the_noises_end": _number(self._ends(counts)),
            **guarantee.details,
            **sent_once,
            "renyi_curve": None if (curve := self.curve(counts)) is None else [_number(v) for v in curve],
            "clients": {
                "participations": counts.tolist(),
                "epsilon_budget": [_number(v) for v in self.budgets] if private else None,
                "noise_multiplier": [_number(v) for v in guarantee.noise],
                "epsilon_claimed": [_number(v) for v in claimed],
                "epsilon_provable": [_number(v) for v in provable],
            },
        }


SHARED = "another run of this very config: it has the same noise, so that both together are one release"

_GENERATOR = {
    True: "secure generator (ChaCha with 8 rounds), its 256-bit key made of the seed and the run's config: "
    "whoever knows these can remove the noise and knows who was sampled; use noise_seed=os for a release",
    False: "secure generator (ChaCha with 8 rounds), its 256-bit key from the operating system; sampling, "
    "batches and dropout come from it too",
}


def _number(value: float) -> float | None:
    """A JSON number; infinity has none and becomes null."""
    return float(value) if np.isfinite(value) else None
