"""One round of private federated learning, and the loop over rounds. No method has a name here."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.aggregators.base import Aggregator, Linear
from fedpriv.algorithms.base import Algorithm
from fedpriv.engine import batches
from fedpriv.engine.base import Engine
from fedpriv.engine.data import ClientData
from fedpriv.engine.work import Rows, Work, blocks
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.parts.declarations import Wiring
from fedpriv.privacy.ledger import Ledger
from fedpriv.randomness.source import Source, generator
from fedpriv.ranks.group import ALONE, Ranks
from fedpriv.rounds.metrics import Evaluation, earth_movers_distances, evaluate
from fedpriv.rounds.setting import Round, Setting
from fedpriv.rounds.store import ClientStore
from fedpriv.servers.base import SGD, Server
from fedpriv.stages.base import Stage
from fedpriv.uploads.base import Upload

_DRAWS = 10_000  # of a round's clients, before it is refused
_BLOCK = 4 << 20  # bytes of messages made at a time, so that they stay in the cache


@dataclass(frozen=True)
class LocalSGD:
    lr: float
    home_lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class RoundResult:
    """What a round leaves for the record; evaluation and losses are diagnostics, not private."""

    number: int
    clients: np.ndarray  # [C]
    train_loss: np.ndarray  # [K], nan where a client did not train
    emd: tuple[float, float]  # of all losses so far; computed after the last round only
    evaluation: Evaluation | None
    validation: Evaluation | None  # the same on samples held out of training, where there are some
    epsilon: np.ndarray  # [K] claimed so far
    uplink: int
    downlink: int
    seconds: float
    diagnostics: dict[str, float]


@dataclass
class Trainer:
    setting: Setting
    train: ClientData
    test: ClientData
    engine: Engine
    mechanism: Mechanism
    algorithm: Algorithm
    aggregator: Aggregator
    upload: Upload
    wiring: Wiring
    ledger: Ledger
    store: ClientStore
    sgd: LocalSGD
    theta: Tensor  # [D]
    seed: int  # of what is public
    source: Source  # of what privacy rests on: noise, sampling, batches, dropout
    seeded: bool  # whether that follows from the config, or from a secret of this run
    evaluate_every: int = 1
    min_clients: int = 1
    validation: ClientData | None = None
    server: Server = field(default_factory=SGD)
    stage: Stage = field(default_factory=Stage)
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        self.next_round = 0
        self.losses = np.full((self.setting.rounds, self.setting.clients), np.nan)
        self._memory = self.theta.new_empty(0)

    @property
    def exhausted(self) -> bool:
        """Whether too few clients can still afford a round."""
        able = np.flatnonzero(self.ledger.eligible())
        return len(able) < self.min_clients or not self.aggregator.accepts(able)

    def round(self) -> RoundResult:
        began, number, setting = time.perf_counter(), self.next_round, self.setting
        clients, expected = self._participants(number)
        constant, noise = self.wiring.constant_weights, self.ledger.guarantee.noise
        round_ = setting.round(
            number, clients, expected, constant, lr=self.sgd.lr, noise=noise, start=self.theta
        )
        draws = {part: self.source.of(part, number) for part in ("clients", "upload", "server")}
        local, groups = self._local_training(round_)
        if len(clients):
            draw = generator(self.seed, "aggregator", number, device=setting.device)
            self.aggregator.draw(round_, draw)
        self.ledger.charge(self.wiring.participation.charged(clients, setting), clients)
        aggregate, uplink = self._collect(local, groups, round_, draws)
        weight = self.aggregator.largest_weight(round_) if self.wiring.bounded_weights else 1.0
        update = self.mechanism.server(aggregate, round_, weight, draws["server"])
        theta = self.server.step(self.theta, self.algorithm.move(update, round_))
        self.theta = self.ranks.from_first(theta)

        self.next_round += 1
        last = self.next_round == setting.rounds or self.exhausted
        judged = last or self.next_round % self.evaluate_every == 0
        return RoundResult(
            number=number,
            clients=clients,
            train_loss=self.losses[number],
            emd=earth_movers_distances(self.losses[: number + 1]) if last else (np.nan, np.nan),
            evaluation=self.evaluate(self.test) if judged else None,
            validation=self.evaluate(self.validation) if judged else None,
            epsilon=self.ledger.claimed(),
            uplink=uplink,
            downlink=self.upload.downlink(round_) + self.stage.downlink(round_),
            seconds=time.perf_counter() - began,
            diagnostics=self.diagnostics(),
        )

    def _participants(self, number: int) -> tuple[np.ndarray, float]:
        """The round's clients, drawn until the aggregator accepts, and the public number to normalise by."""
        eligible = self.ledger.eligible()
        for attempt in range(_DRAWS):
            draw = self.source.of("sampling", number, attempt)
            clients, expected = self.wiring.participation.clients(number, eligible, self.setting, draw)
            if self.aggregator.accepts(clients):
                return clients, expected
        raise UserError(
            f"round {number + 1}: none of {_DRAWS} draws holds a client the aggregator cannot do without; "
            "raise sample_rate"
        )

    def _collect(
        self, local: Tensor, groups: list[Rows], round_: Round, draws: dict[str, Source]
    ) -> tuple[Tensor, int]:
        """What the server makes of the clients' messages, and how many bytes these have.

        Where each message is made, sent and weighed by itself, every group of clients is added up by the rank
        that trained it, and the groups' sums follow each other: in the same order whatever the number of
        ranks. Else all models are brought together first.
        """
        block = max(1, _BLOCK // (4 * local.shape[1]))
        if len(local) <= block or not self._apart:
            received, uplink = self._receive(self._messages(local, groups, round_), round_, draws)
            return self._aggregate(received, round_), uplink
        assert isinstance(self.aggregator, Linear)
        weights, uplink = self.aggregator.weights(round_), 0
        nobody = round_.of(slice(0))
        nothing, _ = self._receive(self.algorithm.message(local[:0], nobody, self.store), nobody, draws)
        sums = nothing.new_zeros(len(groups), nothing.shape[1])
        for number in self.ranks.share(range(len(groups))):
            for some in blocks(groups[number], block):  # all messages never exist at once
                clients = round_.of(some)
                messages = self.algorithm.message(local[some], clients, self.store)
                received, sent = self._receive(messages, clients, draws)
                sums[number].addmv_(received.T, weights[some].to(received))
                uplink += sent
        self.ranks.complete([slice(n, n + 1) for n in range(len(groups))], sums)
        self.store.settle(self._parts(round_, groups), *self.algorithm.facts.keeps)
        return sums.sum(0), sum(self.ranks.all_of(uplink))

    @property
    def _apart(self) -> bool:
        """Whether what becomes of one client's model has nothing to do with the others, up to a sum."""
        methods = (
            (self.algorithm, "message"),
            (self.mechanism, "client"),
            (self.upload, "encode"),
            (self.upload, "decode"),
            (self.aggregator, "__call__"),
        )
        return all(part.apart(method) for part, method in methods)

    def _messages(self, local: Tensor, groups: list[Rows], round_: Round) -> Tensor:
        """What all participants want the server to know, [C, D'], on every rank."""
        if self.algorithm.apart("message"):
            mine, parts = self.ranks.positions(groups), self._parts(round_, groups)
            messages = self.algorithm.message(local[mine], round_.of(mine), self.store)
            self.store.settle(parts, *self.algorithm.facts.keeps)
            messages = self.ranks.laid(messages, mine, len(local))
            self.ranks.complete(groups, messages)
            return messages
        self.ranks.complete(groups, local)
        if self.algorithm.facts.keeps:  # every rank makes all messages, and changes the rows it keeps
            self.store.fetch([torch.as_tensor(round_.clients)] * self.ranks.count)
        return self.algorithm.message(local, round_, self.store)

    def _parts(self, round_: Round, groups: list[Rows]) -> list[Tensor]:
        """The participants that each rank trains."""
        who = torch.as_tensor(round_.clients)
        return [who[self.ranks.positions(groups, rank)] for rank in range(self.ranks.count)]

    def _receive(self, messages: Tensor, round_: Round, draws: dict[str, Source]) -> tuple[Tensor, int]:
        """What the server sees of the round's clients, [C, D'], and how many bytes they sent."""
        private = self.mechanism.client(messages, round_, draws["clients"])
        sent, uplink = self.upload.encode(private, round_, draws["upload"])
        return self.upload.decode(sent, round_), uplink

    def _aggregate(self, received: Tensor, round_: Round) -> Tensor:
        """What the server makes of what it sees. Of nothing: no move, that is the old model where models are
        sent; the mechanism's server still adds its noise."""
        if len(received):
            return self.aggregator(received, round_)
        if self.wiring.sends in ("models", "answers"):
            return round_.start.to(received)
        return received.new_zeros(received.shape[1])

    def _local_training(self, round_: Round) -> tuple[Tensor, list[Rows]]:
        """Broadcast, train every participant, keep at home what stays there; the local models [C, D], in
        memory that the next round uses again, and the groups they were trained in: each is there on the rank
        that trained it."""
        sent = self.setting.layout.sent
        who = torch.as_tensor(round_.clients)
        if not len(who):
            return self.theta.new_zeros(0, sent), []
        owned = self.train.owned[who.to(self.theta.device)].cpu()  # [C, widest]
        training = self.mechanism.training
        plan = training.plan(round_.clients, owned, self.source.of("batches", round_.number))
        plan, data = self.stage.mix(plan, round_, self.train)
        rates = self.algorithm.rates(round_, plan.index.shape[1])
        work = Work(
            rows=self._room(len(who)),
            buffers=self.theta.new_empty(len(who), self.store["statistics"].shape[1]),
            clients=who,
            plan=plan,
            source=self.source.of("training", round_.number),
            lr=rates.sent,
            home_lr=rates.home if self.sgd.home_lr is None else self.sgd.home_lr,
            momentum=self.sgd.momentum,
            weight_decay=self.sgd.weight_decay,
            private=training.private(round_.clients, self.source.of("noise", round_.number)),
        )
        raw = self.algorithm.facts.raw_gradients
        gradients = self._gradients(round_, work.rows, work.buffers) if raw else None
        groups = self._groups(work, data)
        start = self._lay_out(work, round_, groups)
        work = replace(
            work,
            correction=self.algorithm.correction(round_, self.store, gradients),
            after_step=training.after_step(start),
        )
        loss = self.engine.train(work, data, self.ranks.share(groups)).loss
        self.ranks.complete(groups, loss)
        mine = self.ranks.positions(groups)
        at = self.store.at(who[mine])
        self.store["home"][at] = work.rows[mine, sent:]
        self.store["statistics"][at] = work.buffers[mine]
        self.store.settle(self._parts(round_, groups), "home", "statistics")
        self.losses[round_.number, round_.clients] = loss.cpu().numpy()
        return work.rows[:, :sent], groups

    def _groups(self, work: Work, data: ClientData) -> list[Rows]:
        """Which participants are trained together, the same on every rank: on a CPU it follows from the work,
        elsewhere from the memory that the first rank finds free."""
        groups = self.engine.groups(work, data)
        return groups if self.theta.is_cpu else self.ranks.from_first(groups)

    def _lay_out(self, work: Work, round_: Round, groups: list[Rows]) -> Tensor:
        """What the participants of this rank start from, into the work; the sent weights of it, [C, D]."""
        self.store.fetch(self._parts(round_, groups))
        mine, sent = self.ranks.positions(groups), self.setting.layout.sent
        clients = work.clients[mine].to(self.theta.device)
        start, at = self.algorithm.start(self.theta, clients, self.store), self.store.at(clients)
        work.rows[mine, :sent], work.rows[mine, sent:] = start, self.store["home"][at]
        work.buffers[mine] = self.store["statistics"][at]
        return self.ranks.laid(start, mine, len(round_.clients))

    def _room(self, clients: int) -> Tensor:
        """Memory for a round's models, the same in every round: new memory would cost a tenth of a round."""
        size = clients * self.setting.layout.total
        if self._memory.numel() < size:
            self._memory = self.theta.new_empty(size)
        return self._memory[:size].view(clients, -1)

    def _gradients(self, round_: Round, rows: Tensor, statistics: Tensor) -> Tensor:
        """Each participant's gradient over all its samples at what it starts from, decay included, [C, D];
        `rows` and `statistics` are memory for it."""
        samples = torch.as_tensor(round_.sizes)
        once = batches.steps_per_epoch(samples, self.setting.batch_size)
        source, who = self.source.of("gradients", round_.number), torch.as_tensor(round_.clients)
        plan = batches.shuffled(samples, self.setting.batch_size, once, who, source)
        plan, data = self.stage.mix(plan, round_, self.train)
        work = Work(
            rows=rows,
            buffers=statistics,
            clients=who,
            plan=plan,
            source=source,
            lr=[0.0] * plan.index.shape[1],
            measured=torch.zeros_like(rows),
        )
        assert work.measured is not None
        groups = self._groups(work, data)
        self._lay_out(work, round_, groups)
        self.engine.train(work, data, self.ranks.share(groups))
        mine, sent = self.ranks.positions(groups), self.setting.layout.sent
        work.measured[mine] += self.sgd.weight_decay * rows[mine]
        gradients = work.measured[:, :sent]
        self.ranks.complete(groups, gradients)
        return gradients

    def evaluate(self, data: ClientData | None) -> Evaluation | None:
        if data is None:
            return None
        return evaluate(
            self.engine,
            lambda clients: self.algorithm.start(self.theta, clients, self.store),
            self.store,
            data,
            self.algorithm.facts.personal,
            self.ranks,
        )

    def diagnostics(self) -> dict[str, float]:
        """What the parts remark on the round just done: not private, and the same names every round."""
        parts = (self.mechanism, self.algorithm, self.aggregator, self.upload, self.server)
        return {name: value for part in parts for name, value in part.diagnostics().items()}

    # -- a checkpoint is exactly this

    def state(self, folder: Path | None = None) -> dict[str, Any]:
        """Of the first rank; what other ranks keep is brought into a file of the folder, if there is one."""
        return {
            "next_round": self.next_round,
            "theta": self.theta,
            "store": self.store.whole(folder).state(),
            "losses": torch.as_tensor(self.losses),
            "ledger": self.ledger.state(),
            "algorithm": self.algorithm.state(),
            "aggregator": self.aggregator.state(),
            "mechanism": self.mechanism.state(),
            "upload": self.upload.state(),
            "server": self.server.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.next_round = state["next_round"]
        self.theta = state["theta"].to(self.theta)
        self.losses[:] = state["losses"].numpy()
        for part in ("store", "ledger", "algorithm", "aggregator", "mechanism", "upload"):
            getattr(self, part).load(state[part])
        self.server.load(state.get("server", {}))  # older checkpoints have none: they are of plain steps
