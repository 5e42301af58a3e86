"""A run with ears: what its parts are given and give back in a round, with noise or without.

The taps sit on the seams that the trainer itself uses, from outside. No part knows of them, so a part of a
user's own is heard like ours.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from fedpriv.building import Run, build
from fedpriv.engine.base import Engine
from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Trained, Work
from fedpriv.privacy.events import Charge
from fedpriv.randomness.source import Source, key_of
from fedpriv.rounds import trainer as rounds
from fedpriv.rounds.setting import Round
from fedpriv.rounds.trainer import Trainer

Messages = Callable[[Tensor, Round], Tensor]  # what the algorithm made [C, D'] -> what is sent instead


@dataclass
class Heard:
    """What passed the seams in one round."""

    clients: np.ndarray
    works: list[Work] = field(default_factory=list)
    data: list[ClientData] = field(default_factory=list)  # of each work
    sources: list[Source] = field(default_factory=list)
    messages: Tensor | None = None  # [C, D'] into the mechanism
    private: Tensor | None = None  # [C, D''] out of it
    sent: Any = None
    received: Tensor | None = None
    update: Tensor | None = None  # [D]
    state: Tensor | None = None  # [s] numbers the mechanism goes on with, logarithms where positive
    expected: float = 0.0
    theta: Tensor | None = None


class Idle(Engine):
    """Trains nobody."""

    name = "idle"

    def __init__(self, engine: Engine):
        self.layout, self.buffers, self.device, self.workers = (
            engine.layout,
            engine.buffers,
            engine.device,
            engine.workers,
        )

    def groups(self, work: Work, data: ClientData) -> list[Rows]:
        return [slice(0, len(work.clients))]

    def train(self, work: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
        return Trained(torch.zeros(len(work.clients)))

    def predict(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Bench:
    """One run that can be put back to its start, with any key, and listened to."""

    def __init__(self, cfg: DictConfig, prepare: bool = True):
        self.cfg = own = copy.deepcopy(cfg)
        own.noise_seed = "os"  # so that this audit chooses the key
        self.seed = int(own.seed)
        self.run: Run = build(own, secret=lambda: self.key(0), prepare=prepare)
        self.trainer: Trainer = self.run.trainer
        self.trainer.evaluate = lambda data: None  # type: ignore[method-assign]
        self.trainer.seeded = bool(cfg.noise_seed == "config")
        self._start = self.state()
        self._train, self._engine = self.trainer.train, self.trainer.engine

    # -- facts

    @property
    def unit(self) -> str:
        return self.trainer.ledger.guarantee.unit

    def charge(self, client: int) -> Charge | None:
        """What one participation of a client is charged as; None: nothing is provable of it. Where only what
        is sent before round 0 ends the proof, training is held to its own."""
        ledger = self.trainer.ledger
        charges = ledger.guarantee.provable
        if charges is None and any(release.flaws for release in ledger.releases):
            charges = ledger.guarantee.if_mended
        return None if charges is None else charges[ledger.guarantee.kinds[client]]

    def key(self, number: int) -> bytes:
        return key_of(self.seed, f"audit {number}")

    # -- rounds

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(self.trainer.state())

    def reset(self, key: int = 0, round_: int = 0, state: dict[str, Any] | None = None) -> None:
        """Back to before round 0 or to a state, the next round being `round_`, with one of many keys."""
        trainer = self.trainer
        trainer.load(copy.deepcopy(self._start if state is None else state))
        trainer.source, trainer.next_round = Source(self.key(key)), round_
        trainer.train, trainer.engine = self._train, self._engine

    @contextmanager
    def tapped(
        self, heard: Heard, messages: Messages | None, able: np.ndarray | None, engine: Engine | None
    ) -> Iterator[None]:
        """Wrap what the trainer calls; everything is as before afterwards."""
        trainer = self.trainer
        mechanism, upload, algorithm = trainer.mechanism, trainer.upload, trainer.algorithm
        training, participation = mechanism.training, trainer.wiring.participation
        used = engine or trainer.engine

        def work(original: Any) -> Any:
            def train(given: Work, data: ClientData, groups: Sequence[Rows] | None = None) -> Trained:
                heard.works.append(replace(given, rows=given.rows.clone(), buffers=given.buffers.clone()))
                heard.data.append(data)
                heard.sources.append(given.source)
                result: Trained = original(given, data, groups)
                return result

            return train

        def message(original: Any) -> Any:
            def made(local: Tensor, round_: Round, store: Any) -> Tensor:
                out: Tensor = original(local, round_, store)
                heard.messages = out if messages is None else messages(out, round_)
                return heard.messages.clone()

            return made

        def client(original: Any) -> Any:
            def left(given: Tensor, round_: Round, source: Source) -> Tensor:
                heard.sources.append(source)
                out: Tensor = original(given, round_, source)
                heard.private = out.clone()
                return out

            return left

        def encode(original: Any) -> Any:
            def coded(given: Tensor, round_: Round, source: Source) -> Any:
                heard.sources.append(source)
                out = original(given, round_, source)
                heard.sent = copy.deepcopy(out[0])
                return out

            return coded

        def decode(original: Any) -> Any:
            def seen(sent: Any, round_: Round) -> Tensor:
                out: Tensor = original(sent, round_)
                heard.received = out.clone()
                return out

            return seen

        def server(original: Any) -> Any:
            def updated(aggregate: Tensor, round_: Round, weight: float, source: Source) -> Tensor:
                heard.sources.append(source)
                out: Tensor = original(aggregate, round_, weight, source)
                heard.update, heard.expected = out.clone(), round_.expected
                return out

            return updated

        def given(original: Any) -> Any:
            def called(*arguments: Any) -> Any:
                heard.sources.extend(a for a in arguments if isinstance(a, Source))
                return original(*arguments)

            return called

        taps = [
            (used, "train", work),
            (algorithm, "message", message),
            (mechanism, "client", client),
            (mechanism, "server", server),
            (upload, "encode", encode),
            (upload, "decode", decode),
            (training, "plan", given),
            (training, "private", given),
        ]
        watched = copy.copy(participation)
        original = participation.clients
        object.__setattr__(watched, "clients", given(original))
        with ExitStack() as stack:
            for owner, name, tap in taps:
                stack.enter_context(_instead(owner, name, tap(getattr(owner, name))))
            stack.enter_context(_instead(trainer, "engine", used))
            stack.enter_context(patch.object(rounds, "_BLOCK", 1 << 62))  # all messages pass at once
            stack.enter_context(_instead(trainer, "wiring", replace(trainer.wiring, participation=watched)))
            if able is not None:
                stack.enter_context(_instead(trainer.ledger, "eligible", lambda: able))
            yield

    def round(
        self,
        *,
        messages: Messages | None = None,
        able: np.ndarray | None = None,
        engine: Engine | None = None,
        train: bool = True,
    ) -> Heard:
        """One round as it is, or with other messages, only some clients able, or nobody trained."""
        heard = Heard(np.zeros(0))
        with self.tapped(heard, messages, able, engine or (None if train else Idle(self._engine))):
            result = self.trainer.round()
        heard.clients, heard.theta = result.clients, self.trainer.theta
        heard.state = numbers(self.trainer.mechanism.state())
        return heard

    def everyone(self) -> np.ndarray:
        return np.ones(self.trainer.setting.clients, dtype=bool)

    # -- neighbours

    @contextmanager
    def without_sample(self, client: int, place: int) -> Iterator[None]:
        """The data without one sample, as training sees them; what is public about sizes stays."""
        trainer, training = self.trainer, self.trainer.mechanism.training
        setting = copy.copy(trainer.setting)
        sizes = setting.sizes.copy()
        sizes[client] -= 1
        with (
            _instead(trainer, "train", without(trainer.train, client, place)),
            _instead(training, "setting", replace(setting, sizes=sizes)),
        ):
            yield


def without(data: ClientData, client: int, place: int) -> ClientData:
    """The data from which one sample is gone; the others keep their numbers."""
    owned, size = data.owned.clone(), data.size.clone()
    owned[client, place:-1] = data.owned[client, place + 1 :]
    size[client] -= 1
    return replace(data, owned=owned, size=size)


def numbers(state: dict[str, Any]) -> Tensor:
    """The numbers of a mechanism's state as one vector, [s]; of positive ones the logarithm, for such are
    followed by factors."""
    found = []
    for value in state.values():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(torch.tensor([float(value)], dtype=torch.float64))
        elif isinstance(value, Tensor) and value.is_floating_point():
            found.append(value.detach().double().flatten())
    whole = torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
    return torch.where(whole > 0, whole.clamp(min=1e-300).log(), whole)


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute of one object for a while, a frozen one's too."""
    own = vars(owner)
    had, before = name in own, own.get(name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        if had:
            object.__setattr__(owner, name, before)
        else:
            object.__delattr__(owner, name)
