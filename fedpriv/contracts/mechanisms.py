"""What a mechanism promises."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Aggregator
from fedpriv.aggregators.mean import Mean
from fedpriv.aggregators.sum import Sum
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.contracts.trial import (
    CLIENTS,
    DRAWS,
    HUGE,
    WIDTH,
    Broken,
    Check,
    Untold,
    round_of,
    setting,
    some_uploads,
    source,
    want,
)
from fedpriv.mechanisms.base import Mechanism
from fedpriv.parts.wiring import wire
from fedpriv.privacy.events import Event, Joint, SampledGaussian
from fedpriv.privacy.skellam import SampledSkellam
from fedpriv.uploads.base import Upload
from fedpriv.uploads.plain import Plain
from fedpriv.uploads.secure_sum import SecureSum


def mechanism_checks(new: Callable[[], Mechanism]) -> Iterator[Check]:
    facts = setting()
    if (said := getattr(new(), "facts", None)) is not None and said.participation.fixed:
        facts = replace(facts, sample_rate=1.0)

    def ready() -> tuple[Mechanism, Aggregator, Upload, Any]:
        part = new()
        shares = part.facts.sends == "shares"
        aggregator: Aggregator = Sum() if shares else Mean()
        upload: Upload = SecureSum() if shares else Plain()
        wiring = wire(part, FedAvg(), aggregator, upload, facts)
        aggregator.setup(facts, wiring)
        upload.setup(facts, wiring)
        return part, aggregator, upload, part.setup(facts, wiring)

    def released(parts: tuple[Any, ...], messages: Tensor, clients: Any, seed: int) -> Tensor:
        part, aggregator, upload, _ = parts
        round_, draws = round_of(facts, clients), source(seed)
        sent = part.client(messages.clone(), round_, draws.of("clients"))
        coded, _ = upload.encode(sent, round_, draws.of("upload"))
        seen = upload.decode(coded, round_)
        if len(seen):
            aggregate = aggregator(seen, round_)
        elif part.facts.sends in ("models", "answers"):
            aggregate = round_.start.clone()
        else:
            aggregate = seen.new_zeros(seen.shape[1])
        update: Tensor = part.server(aggregate, round_, aggregator.largest_weight(round_), draws.of("server"))
        return update

    def guarantee() -> None:
        part, _, _, promised = ready()
        want(
            promised.unit in (part.facts.unit, "none"),
            f"facts protect a {part.facts.unit}, not the guarantee",
        )
        want(
            promised.noise.shape == (CLIENTS,) == promised.kinds.shape,
            "noise and kinds are not one a client",
        )
        want(int(promised.kinds.max()) < len(promised.claimed), "kinds picks a charge there is not")

    def nobody() -> None:
        update = released(ready(), torch.zeros(0, WIDTH), [], 0)
        want(
            update.shape == (WIDTH,) and bool(update.isfinite().all()),
            "no finite update of the model's width",
        )

    def alone() -> None:
        update = released(ready(), some_uploads(1), [2], 0)
        want(
            update.shape == (WIDTH,) and bool(update.isfinite().all()),
            "no finite update of the model's width",
        )

    def overflow() -> None:
        parts = ready()
        if parts[0].facts.passes_on:
            raise Untold("it says that messages leave as they came")
        if parts[3].provable is None:
            raise Untold("nothing is provable of it, and it says so")
        messages = some_uploads(CLIENTS)
        messages[0], messages[1, 0], messages[2] = torch.nan, torch.inf, 1e38
        update = released(parts, messages, range(CLIENTS), 0)
        want(
            bool(update.isfinite().all()),
            "a client whose message overflowed makes an update that is not finite",
        )

    def apart() -> None:
        part, _, _, promised = ready()
        if part.facts.sends == "shares":
            raise Untold("its noise belongs to the sum")
        if promised.provable is None and promised.unit != "none":
            raise Untold("nothing is provable of it, and it says so")
        messages = some_uploads(CLIENTS)
        whole = part.client(messages.clone(), round_of(facts, range(CLIENTS)), source())
        for absent in range(CLIENTS):
            who = [client for client in range(CLIENTS) if client != absent]
            rest = part.client(messages[who].clone(), round_of(facts, who), source())
            want(torch.equal(whole[who], rest), "a client's absence changes what others send")

    def noise() -> None:
        parts = ready()
        part, promised = parts[0], parts[3]
        if promised.provable is None:
            raise Untold("nothing is provable of it, and it says so")
        wanted = [_multiplier(charge) for charge in promised.provable]
        if part.facts.unit == "sample":
            private = part.training.private(np.arange(CLIENTS), source())
            if private is None:
                raise Broken("samples are protected, but local training has no noise")
            has = (private.noise_std / private.clip_norm).double().numpy()
            for client, kind in enumerate(promised.kinds):
                _enough(float(has[client]), wanted[kind], 1e-4)
            return
        zero, one = torch.zeros(CLIENTS, WIDTH), torch.zeros(CLIENTS, WIDTH)
        one[2] = HUGE
        still = -one if part.facts.replaces else zero
        moves = [released(ready(), a, range(CLIENTS), 1) for a in (one, still)]
        moved = float((moves[0] - moves[1]).norm())
        drawn = [released(ready(), zero, range(CLIENTS), 2 + s) for s in range(DRAWS)]
        # Its error is below 5 / sqrt(2 n) of it.
        error = 5 / math.sqrt(2 * DRAWS * WIDTH)
        _enough(float(torch.stack(drawn).std()) / moved, wanted[promised.kinds[2]], error)

    def state() -> None:
        parts, others = ready(), ready()
        for number in range(3):
            released(parts, some_uploads(CLIENTS, number), range(CLIENTS), number)
        others[0].load(copy.deepcopy(parts[0].state()))
        results = [released(p, some_uploads(CLIENTS, 9), range(CLIENTS), 9) for p in (parts, others)]
        want(torch.equal(*results), "after state and load it releases something else")

    yield Check("the guarantee is about what the facts say", guarantee)
    yield Check("an empty round: a finite update", nobody)
    yield Check("one client: a finite update", alone)
    yield Check("a message that overflowed is bounded like others", overflow)
    yield Check("a client's absence leaves what others send", apart)
    yield Check("the noise is no less than what is charged", noise)
    yield Check("saved and loaded it releases the same", state)


def _multiplier(charge: tuple[Event, ...]) -> float:
    """Standard deviation of the noise over the largest move, of a charge that is one Gaussian or Skellam."""
    if len(charge) == 1 and isinstance(charge[0], SampledGaussian):
        return charge[0].noise_multiplier
    if len(charge) == 1 and isinstance(charge[0], Joint):
        return _multiplier(charge[0].of(1))
    if len(charge) == 1 and isinstance(charge[0], SampledSkellam):
        return math.sqrt(charge[0].variance) / charge[0].l2
    raise Untold(
        f"it is charged as {', '.join(type(e).__name__ for e in charge)}, which is not measured here"
    )


def _enough(has: float, wanted: float, error: float) -> None:
    want(has >= wanted * (1 - error), f"noise of {has:.4g} times the largest move, charged as {wanted:.4g}")
