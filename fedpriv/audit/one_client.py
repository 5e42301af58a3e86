"""Unit client: what is released with and without one client, or with its message replaced."""

import numpy as np
import torch
from torch import Tensor

from fedpriv.audit import shared_rounds, shares
from fedpriv.audit.finding import Finding, judged, unasked, worst_of
from fedpriv.audit.fresh import fresh, of_answers, of_uploads
from fedpriv.audit.moves import Largest, Seen, entries, multiplier, norm_of, shared_noise
from fedpriv.audit.noise import quiet
from fedpriv.audit.spread import ROUNDING, Noise, moved, together
from fedpriv.audit.taps import Bench, Heard
from fedpriv.audit.worst import KINDS, Worst, neighbours

_STATES = 200  # keys, where a mechanism's own numbers are released too


def where_released(bench: Bench, heard: Heard, bare: Heard) -> str:
    """What the guarantee is about: "sum" of shares, "uploads" that have noise, or the server's "update"."""
    if bench.trainer.mechanism.facts.sends == "shares":
        return "sum"
    assert heard.private is not None and bare.private is not None
    same = torch.equal(heard.private.nan_to_num(), bare.private.nan_to_num())
    drawn_anyway = bench.trainer.mechanism.facts.sends == "answers"
    return "update" if same and not drawn_anyway else "uploads"


def audit(bench: Bench, choices: int) -> list[Finding]:
    """What is released with and without one client, or with its message replaced."""
    setting = bench.trainer.setting
    able = bench.everyone()
    bench.reset()
    with quiet():
        bare = bench.round(messages=Worst(bench, "large"), able=able, train=False)
    bench.reset()
    loud = bench.round(messages=Worst(bench, "large"), able=able, train=False)
    place = where_released(bench, loud, bare)
    found = [] if place != "sum" else shares.hidden(bench)
    if place == "uploads" and not _additive(loud, bare):
        return [*found, *of_answers(bench)]
    charges = [bench.charge(k) for k in range(setting.clients)]
    joint = any(shared_noise(charge) for charge in charges)
    move, rows, names = Largest(f"move of {_WORDS[place]}"), [], []
    seen: list[Seen] = []
    draw = np.random.default_rng(bench.seed)
    assert loud.state is not None and bare.state is not None
    released_too = place == "update" and not joint and not torch.equal(loud.state, bare.state)
    states = _state_noise(bench, able) if released_too else None
    for number in range(choices):
        kind, round_ = KINDS[number % len(KINDS)], int(draw.integers(min(4, setting.rounds)))
        key = number % 3
        bench.reset(key, round_)
        with quiet():
            whole = bench.round(messages=Worst(bench, "small"), able=able, train=False)
        if not len(whole.clients):
            continue
        client = int(draw.choice(whole.clients))
        pair = [_neighbour(bench, client, kind, side, key, round_) for side in (0, 1)]
        bench.reset(key, round_)
        noisy = bench.round(messages=Worst(bench, kind, client), able=able, train=False)
        noise = _release(noisy, client, place, bench) - _release(pair[0], client, place, bench)
        change = _release(pair[0], client, place, bench) - _release(pair[1], client, place, bench)
        if place == "sum":
            noise, change = (shares.centred(t, bench) for t in (noise, change))
        z, norm = multiplier(charges[client]), norm_of(charges[client])
        text = f"round {round_ + 1}, client {client}, a message that is {kind}"
        if number < 12 and noise.numel():
            rows.append(noise[0])
            names.append(f"round {round_ + 1}, key {key}, client {client if place == 'uploads' else 'any'}")
        if z is None or joint:
            continue
        if place == "sum":
            found += shares.integers(bench, client, noise, change, text)
        wide = Noise.of(noise, norm)
        here, more = moved(change[0], wide), None
        if states is not None:
            assert pair[0].state is not None and pair[1].state is not None
            more = moved(pair[0].state - pair[1].state, states)
        move.see((here if more is None else together(here, more)).times(z), text)
        if bool(noise.any()):  # a round that was refused has none, and moves nothing
            kind_of_charge = int(bench.trainer.ledger.guarantee.kinds[client])
            seen.append(Seen(kind_of_charge, z, change[0], wide, text, more))
    move.pool(seen)
    if joint and place == "update":
        found += shared_rounds.audit(bench, choices)
    elif joint or multiplier(charges[0]) is None:
        found.append(unasked(move.check, "what is charged is no single Gaussian, or nothing is provable"))
    else:
        found.append(move.finding([] if place == "sum" else entries(bench)))
    if place == "uploads":
        rows, names = of_uploads(bench, able)
    found += fresh(rows, names)
    found += _others_train_alike(bench)
    return worst_of(found)


_WORDS = {"sum": "the sum of shares", "uploads": "what leaves a client", "update": "the server's update"}


def _neighbour(bench: Bench, client: int, kind: str, side: int, key: int, round_: int) -> Heard:
    """Without noise: the client with such a message, or its neighbour."""
    messages, able = neighbours(bench, client, kind)[side]
    bench.reset(key, round_)
    with quiet():
        return bench.round(messages=messages, able=able, train=False)


def _release(heard: Heard, client: int, place: str, bench: Bench) -> Tensor:
    """What is released, [1, P], or nothing."""
    if place == "update":
        assert heard.update is not None
        return heard.update[None].double()
    if place == "sum":
        assert heard.received is not None
        return (
            heard.received[:1]
            if len(heard.received)
            else heard.received.new_zeros(1, heard.received.shape[1])
        )
    assert heard.private is not None
    position = heard.clients.tolist().index(client)
    return heard.private[position : position + 1].double()


def _state_noise(bench: Bench, able: np.ndarray) -> Tensor:
    """The noise of the numbers a mechanism goes on with, over many keys, [n, s]."""
    found, messages = [], Worst(bench, "small")
    for key in range(_STATES):
        pair = []
        for silent in (True, False):
            bench.reset(100 + key)
            if silent:
                with quiet():
                    pair.append(bench.round(messages=messages, able=able, train=False).state)
            else:
                pair.append(bench.round(messages=messages, able=able, train=False).state)
        assert pair[0] is not None and pair[1] is not None
        found.append(pair[1] - pair[0])
    return torch.stack(found)


def _additive(loud: Heard, bare: Heard) -> bool:
    """Whether what leaves a client is a value plus noise, and no answer from a few."""
    assert loud.private is not None and bare.private is not None
    return len(loud.private[:1].unique()) > 16 and not torch.equal(loud.private, bare.private)


def _others_train_alike(bench: Bench) -> list[Finding]:
    """With real training: what others send does not depend on who is absent."""
    if bench.trainer.setting.clients < 2:
        return []
    able = bench.everyone()
    bench.reset()
    whole = bench.round(able=able)
    if len(whole.clients) < 2 or not bench.trainer.mechanism.facts.participation.secret:
        return []
    gone = int(whole.clients[len(whole.clients) // 2])
    able[gone] = False
    bench.reset()
    fewer = bench.round(able=able)
    assert whole.messages is not None and fewer.messages is not None
    rest = torch.as_tensor(whole.clients != gone)
    if not np.array_equal(whole.clients[rest.numpy()], fewer.clients):
        return [judged("others train alike", False, f"without client {gone} other clients take part")]
    apart = float(
        (whole.messages[rest] - fewer.messages).norm() / whole.messages[rest].norm().clamp(min=1e-30)
    )
    text = f"without client {gone} the others' messages move by {apart:.2g} of their length"
    return [judged("others train alike", apart <= ROUNDING, text, apart, ROUNDING)]
