"""What an aggregator promises."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from fedpriv.aggregators.base import Aggregator
from fedpriv.contracts.trial import (
    CLIENTS,
    HUGE,
    WIDTH,
    Broken,
    Check,
    Untold,
    round_of,
    setting,
    some_uploads,
    want,
)
from fedpriv.parts.declarations import Wiring
from fedpriv.rounds.setting import Round


def aggregator_checks(new: Callable[[], Aggregator]) -> Iterator[Check]:
    facts = setting()

    def ready(wiring: Wiring | None = None) -> Aggregator:
        part = new()
        part.setup(facts, wiring or Wiring(aggregator=part, constant_weights=False))
        return part

    def drawn(part: Aggregator, uploads: Tensor, round_: Round) -> Tensor:
        part.draw(round_, torch.Generator().manual_seed(7))
        return part(uploads, round_)

    def cohorts(part: Aggregator, sizes: range) -> Iterator[list[int]]:
        for size in sizes:
            for first in range(CLIENTS):
                who = sorted((first + i) % CLIENTS for i in range(size))
                if part.accepts(np.array(who)):
                    yield who

    def any_number() -> None:
        part = ready()
        for who in cohorts(part, range(1, CLIENTS + 1)):
            result = drawn(ready(), some_uploads(len(who)), round_of(facts, who, constant=False))
            want(
                result.shape == (WIDTH,) and bool(result.isfinite().all()),
                f"{len(who)} uploads of {WIDTH} finite numbers give {tuple(result.shape)}, "
                f"{int((~result.isfinite()).sum())} of them not finite",
            )

    def overflow() -> None:
        uploads = some_uploads(CLIENTS)
        uploads[1], uploads[2, 0] = torch.nan, torch.inf
        result = drawn(ready(), uploads, round_of(facts, range(CLIENTS), constant=False))
        want(result.shape == (WIDTH,), f"gives shape {tuple(result.shape)}")

    def numbers() -> None:
        uploads = some_uploads(CLIENTS).double()
        result = drawn(ready(), uploads, round_of(facts, range(CLIENTS), constant=False))
        want(result.dtype == torch.float64, f"float64 uploads give {result.dtype}")

    def device() -> None:
        part, round_ = ready(), round_of(facts, range(CLIENTS), constant=False)
        part.draw(round_, torch.Generator().manual_seed(7))
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                where = part(torch.empty(CLIENTS, WIDTH, device="cuda"), round_).device.type
        except (DataDependentOutputException, DynamicOutputShapeException) as problem:
            raise Untold("it looks at values, which a device that is not there has none of") from problem
        except RuntimeError as problem:
            if "not linked" in str(problem):  # it brings something of its own there, as it should
                raise Untold("it asks for the device itself, which is not there") from problem
            raise Broken(f"uploads on cuda: {str(problem).splitlines()[0]}") from problem
        want(where == "cuda", f"uploads on cuda give a result on {where}")

    def order() -> None:
        part, uploads = ready(), some_uploads(CLIENTS)
        kind = part.facts.symmetric
        if kind == "nothing":
            raise Untold("it says that it needs to know who sent what")
        mixed = uploads[[3, 0, 4, 1, 2]]
        if kind == "values":
            mixed = torch.stack([uploads[:, j].roll(j) for j in range(WIDTH)], 1)
        round_ = round_of(facts, range(CLIENTS), constant=False)
        close = torch.allclose(drawn(part, uploads, round_), drawn(ready(), mixed, round_), atol=1e-5)
        want(close, f"it says symmetric={kind!r}, but the result depends on it")

    def weight() -> None:
        part = ready(Wiring(constant_weights=True))
        if not part.facts.bounded:
            raise Untold("it says that nothing bounds a client's weight; dp=cdp refuses it")
        bounds = set()
        for who in cohorts(part, range(1, CLIENTS + 1)):
            round_, uploads = round_of(facts, who), some_uploads(len(who))
            most = part.largest_weight(round_)
            bounds.add(most)
            whole = drawn(part, uploads, round_)
            for place in range(len(who)):
                moved = uploads.clone()
                moved[place] += HUGE
                by = float((drawn(part, moved, round_) - whole).norm()) / (HUGE * math.sqrt(WIDTH))
                want(by <= most * (1 + 1e-4), f"client {who[place]} of {who} weighs {by:.4g}, not {most:.4g}")
                rest = who[:place] + who[place + 1 :]
                if rest and part.accepts(np.array(rest)):
                    other = drawn(
                        part, torch.cat([uploads[:place], uploads[place + 1 :]]), round_of(facts, rest)
                    )
                    left = float((whole - other).norm()) / float(uploads[place].norm())
                    want(left <= most * (1 + 1e-4), f"leaving out client {who[place]} moves more than that")
        want(len(bounds) == 1, f"the largest weight depends on who takes part: {sorted(bounds)}")

    def models() -> None:
        part = ready()
        if "models" not in part.facts.takes:
            raise Untold("it says that it takes updates only")
        one = some_uploads(1)
        part = ready(Wiring(sends="models", aggregator=part, constant_weights=False))
        round_ = replace(round_of(facts, range(CLIENTS), constant=False), start=one[0])
        made = drawn(part, one.expand(CLIENTS, -1).clone(), round_)
        want(torch.allclose(made, one[0], atol=1e-5), "of equal models it makes another model")

    def answers() -> None:
        part = ready()
        if "answers" not in part.facts.takes:
            raise Untold("it says that it is no mean")
        round_ = round_of(facts, range(CLIENTS), constant=False)
        a, b = some_uploads(CLIENTS, 1), some_uploads(CLIENTS, 2)
        both = drawn(part, a + b, round_)
        apart = drawn(part, a, round_) + drawn(part, b, round_)
        want(
            torch.allclose(both, apart, atol=1e-4),
            "it takes answers that are right on average, but is no mean",
        )

    yield Check("one client and more: a finite result of the uploads' width", any_number)
    yield Check("an upload that overflowed does not stop it", overflow)
    yield Check("it keeps the uploads' precision", numbers)
    yield Check("it works where the uploads are, on another device too", device)
    yield Check("symmetric as it says", order)
    yield Check("no client weighs more than the largest weight", weight)
    yield Check("of equal models it makes that model", models)
    yield Check("of answers at random it makes their mean", answers)
