"""From config to plain objects. The config dies here: nothing below sees one."""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from fedpriv.accelerator import refuse_lacking
from fedpriv.aggregators.base import Aggregator
from fedpriv.algorithms.base import Algorithm
from fedpriv.config import identity
from fedpriv.config.checks import check
from fedpriv.config.options import filled
from fedpriv.datasets.base import Data
from fedpriv.device import choose_device, kind_of_device
from fedpriv.engine import batches
from fedpriv.engine.base import cores
from fedpriv.engine.data import ClientData, Side
from fedpriv.engine.dropout import check_draws
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.layout import Layout
from fedpriv.engine.loop import LoopEngine
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.models.parts import Network, mixes_samples, normalises_batches
from fedpriv.partitions.base import Split
from fedpriv.partitions.validation import hold_out
from fedpriv.parts.base import Part
from fedpriv.parts.making import make, source
from fedpriv.parts.wiring import wire
from fedpriv.privacy import accountants
from fedpriv.privacy.ledger import Ledger
from fedpriv.randomness.source import Source, key_of, numpy_generator, seed_for
from fedpriv.ranks.divided import DividedStore
from fedpriv.ranks.group import ALONE, Group, Ranks
from fedpriv.rounds.schedule import deal
from fedpriv.rounds.setting import Setting
from fedpriv.rounds.store import ClientStore
from fedpriv.rounds.trainer import LocalSGD, Trainer
from fedpriv.servers.base import Server
from fedpriv.stages.base import Origin
from fedpriv.uploads.base import Upload


class Run:
    """Everything one run needs, and what was remarked while building it."""

    def __init__(self, trainer: Trainer, origin: Origin, split: Split, network: Network, warnings: list[str]):
        self.trainer, self.data, self.split, self.warnings = trainer, origin.data, split, warnings
        self.network = network  # as initialised; what is trained is in trainer.theta and trainer.store
        self.transform = network.transform
        self._origin = origin

    def prepare(self) -> None:
        """What the stage does before round 0."""
        self.trainer.stage.prepare(self.trainer, self._origin)


def _noise_identity(cfg: DictConfig, data: Data) -> str:
    """What noise is keyed by: the run's identity, but both engines draw the same."""
    same = cfg.copy()
    same.engine = FastEngine.name
    return f"{identity.of_config(same)} {data.fingerprint}"


def build(
    cfg: DictConfig,
    secret: Callable[[], bytes] = secrets.token_bytes,
    prepare: bool = True,
    ranks: Ranks = ALONE,
) -> Run:
    """Everything a run needs; `secret` gives the key where noise must not follow from the config. Without
    `prepare` the stage is announced only, which is enough to say what the run will guarantee. `ranks`: the
    processes that share the run."""
    cfg = filled(cfg)
    check(cfg)
    device = choose_device(cfg.device)
    dtype = {"float32": torch.float32, "float64": torch.float64}[cfg.dtype]
    partition_seed = cfg.seed if cfg.partition_seed is None else cfg.partition_seed
    data, split = _data(cfg, partition_seed)
    mechanism: Mechanism = make(cfg, "dp_variant")
    algorithm: Algorithm = make(cfg, "algorithm")
    aggregator: Aggregator = make(cfg, "aggregator")
    upload: Upload = make(cfg, "upload")
    server: Server = make(cfg, "server")
    _check_device(cfg, mechanism, algorithm, aggregator, upload, server)
    network = _network(cfg, data).to(dtype)
    layout = Layout.of_parameters(network, _home(network, algorithm))
    statistics = Layout.of_statistics(network)
    setting = _setting(cfg, data, split, layout, device)
    wiring = wire(mechanism, algorithm, aggregator, upload, setting)
    _check_norms(network, mechanism)
    _check_apart(network, data, mechanism, cfg.engine)
    check_draws(network, data.prepare(data.x_train[:2], dtype))
    for part in (aggregator, upload, algorithm, server):
        part.setup(setting, wiring)
    guarantee = upload.amplify(mechanism.setup(setting, wiring))
    public = data.not_covered + aggregator.facts.not_covered + algorithm.facts.not_covered
    guarantee = replace(guarantee, not_covered=guarantee.not_covered + public)
    start = layout.flatten(network).to(device)
    seeded = cfg.noise_seed == "config"
    key = key_of(cfg.seed, _noise_identity(cfg, data)) if seeded else secret()
    engine = FastEngine if cfg.engine == FastEngine.name else LoopEngine

    def on_device(side: Side, parts: Sequence[np.ndarray]) -> ClientData:
        return ClientData.of(data, side, parts, device, dtype)

    trainer = Trainer(
        setting=setting,
        train=on_device("train", split.train),
        test=on_device("test", split.test),
        validation=on_device("validation", split.validation) if split.validation else None,
        engine=engine(network, layout, statistics, device, cfg.threads or max(1, cores() // ranks.here)),
        mechanism=mechanism,
        algorithm=algorithm,
        aggregator=aggregator,
        upload=upload,
        server=server,
        stage=make(cfg, "stage"),
        wiring=wiring,
        ledger=Ledger(guarantee, setting.budgets, cfg.delta, setting.accountant),
        store=_store(
            setting, ranks, start, statistics.flatten(network).to(device, dtype), algorithm.facts.keeps
        ),
        sgd=LocalSGD(cfg.lr, getattr(network.transform, "lr", None), cfg.momentum, cfg.weight_decay),
        theta=start[: layout.sent].clone(),
        seed=cfg.seed,
        source=Source(key),
        seeded=seeded,
        evaluate_every=cfg.evaluate_every,
        min_clients=cfg.min_clients,
        ranks=ranks,
    )
    if trainer.exhausted:
        raise UserError(
            f"no round can be trained: {int(trainer.ledger.eligible().sum())} of {cfg.clients} clients can "
            f"afford one and min_clients={cfg.min_clients}; raise epsilon or lower min_clients"
        )
    origin = Origin(data, lambda: make(cfg, "model", **_facts(data)), partition_seed)
    remarks = trainer.stage.announce(trainer, origin)
    run = Run(trainer, origin, split, network, _warnings(trainer) + remarks)
    if prepare:
        run.prepare()
    return run


# -- its steps


def _data(cfg: DictConfig, seed: int) -> tuple[Data, Split]:
    """The data set, and who owns what of it."""
    dataset, folder = source(cfg)
    data: Data = dataset.load(folder)
    partition = make(cfg, "partition")
    if know := getattr(partition, "know", None):
        know(data)
    split: Split = partition.split(
        data.y_train.numpy(),
        data.y_test.numpy(),
        clients=cfg.clients,
        classes=data.classes,
        rng=numpy_generator(seed, "partition"),
    )
    return data, hold_out(split, cfg.validation, numpy_generator(seed, "validation"))


def _facts(data: Data) -> dict[str, Any]:
    """What models and transforms may ask for."""
    return {"shape": data.shape, "classes": data.classes, "vocabulary": data.vocabulary}


def _network(cfg: DictConfig, data: Data) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(cfg.seed, "init"))
        transform, model = make(cfg, "transform", **_facts(data)), make(cfg, "model", **_facts(data))
        return Network(transform, model, data.standard)


def _home(network: Network, algorithm: Algorithm) -> set[str]:
    """The names of what never leaves a client: the transform, and what the algorithm keeps at home."""
    personal = {f"transform.{n}" for n, _ in network.transform.named_parameters()}
    return personal | {f"model.{n}" for n in algorithm.home(network.model)}


def _setting(cfg: DictConfig, data: Data, split: Split, layout: Layout, device: torch.device) -> Setting:
    sizes = torch.tensor([len(part) for part in split.train])
    return Setting(
        dataset=data.name,
        clients=cfg.clients,
        rounds=cfg.rounds,
        sample_rate=cfg.sample_rate,
        batch_size=cfg.batch_size,
        sizes=sizes.numpy(),
        steps=batches.local_steps(sizes, cfg.batch_size, cfg.local_epochs, cfg.local_steps).numpy(),
        epochs_steps=batches.steps_per_epoch(sizes, cfg.batch_size).numpy(),
        layout=layout,
        budgets=make(cfg, "budget")(cfg.clients, numpy_generator(cfg.seed, "budgets")),
        delta=cfg.delta,
        accountant=accountants.create(cfg.accountant),
        device=device,
        momentum=cfg.momentum,
        schedule=_schedule(cfg),
        separation=cfg.separation or 1,
    )


def _schedule(cfg: DictConfig) -> list[np.ndarray] | None:
    """The clients of every round, where that is fixed beforehand."""
    if cfg.participations:
        dealing, apart = numpy_generator(cfg.seed, "schedule"), cfg.separation or 1
        return deal(cfg.clients, cfg.rounds, cfg.participations, cfg.sample_rate, dealing, apart)
    if cfg.separation is not None:
        raise UserError(
            f"separation={cfg.separation}: only a schedule keeps clients apart; set participations too"
        )
    return None


def _store(
    setting: Setting, ranks: Ranks, start: Tensor, statistics: Tensor, keeps: Sequence[str]
) -> ClientStore:
    """What every client has of its own before round 0."""
    clients, sent, device = setting.clients, setting.layout.sent, setting.device
    store = ClientStore(clients, device)
    if isinstance(ranks, Group):
        store = DividedStore(clients, ranks, device)
    store.claim("home", start[sent:])
    store.claim("statistics", statistics)
    for owner in keeps:
        store.claim(owner, torch.zeros(sent, device=device))
    return store


def _check_device(cfg: DictConfig, *parts: Part) -> None:
    """Refuse in one line what the kind of device cannot do."""
    kind = kind_of_device(cfg.device)
    refuse_lacking(kind, f"dtype={cfg.dtype}", (cfg.dtype,))
    for part in parts:
        refuse_lacking(kind, type(part).__name__, part.device_needs)


def _check_norms(network: nn.Module, mechanism: Mechanism) -> None:
    if mechanism.facts.per_sample and normalises_batches(network):
        raise UserError(
            "model.norm=batch: batch statistics mix samples, so gradients cannot be clipped one sample at a "
            "time as this dp_variant does; use model.norm=group or model.norm=none"
        )


def _check_apart(network: nn.Module, data: Data, mechanism: Mechanism, engine: str) -> None:
    """Refuse a network whose output for a sample depends on the others in its batch."""
    if not mechanism.facts.per_sample and engine != FastEngine.name:
        return
    try:
        mixed = mixes_samples(network, data.shape, data.vocabulary)
    except Exception as problem:  # whatever somebody's model raises
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise UserError(
            f"model: cannot be run on samples of shape {list(data.shape)} ({reason})"
        ) from problem
    if not mixed:
        return
    why = "so the engine's stacked clients would be mixed; use engine=loop, or let it treat each sample alone"
    if mechanism.facts.per_sample:
        why = (
            "so gradients cannot be clipped one sample at a time as this dp_variant does; let it treat each "
            "sample alone"
        )
    raise UserError(f"model: its output for a sample depends on the other samples of the batch, {why}")


def _warnings(trainer: Trainer) -> list[str]:
    """Remarks on a run that is legal but deserves a second look."""
    setting, unit = trainer.setting, trainer.ledger.guarantee.unit
    parts = (trainer.mechanism, trainer.algorithm, trainer.aggregator, trainer.upload, trainer.server)
    found = [remark for part in parts for remark in part.remarks]
    size = {"sample": int(setting.sizes.min()), "client": setting.clients}.get(unit, 0)
    if size and setting.delta >= 1 / size:
        what = "samples of the smallest client" if unit == "sample" else "clients"
        found.append(
            f"delta={setting.delta:g} is not below 1/{size} (the {what}): a mechanism that publishes one "
            f"{unit} outright would meet it; choose a smaller delta"
        )
    if unit == "client" and (remark := _drowned(trainer)):
        found.append(remark)
    charged = trainer.wiring.participation.rounds_charged(setting)
    if charged == setting.planned < setting.rounds and unit != "none" and setting.schedule is None:
        found.append(
            f"noise is calibrated to {setting.planned} participations a client (sample_rate x rounds); "
            "a client drawn more often opts out when its budget is spent"
        )
    return found


def _drowned(trainer: Trainer) -> str | None:
    """A remark if noise on the whole model outweighs what all clients together can move it by.

    The mean of K clipped updates moves the model by at most the clip a round, T rounds by T clips; its noise
    has a norm of about z clip sqrt(D) / K a round, and of sqrt(T) times that over T rounds.
    """
    setting, noise = trainer.setting, float(trainer.ledger.guarantee.noise.max())
    expected = setting.clients * setting.sample_rate
    share = noise * math.sqrt(setting.layout.sent) / expected / math.sqrt(setting.rounds)
    if share <= 1:
        return None
    return (
        f"noise will outweigh learning: it moves the {setting.layout.sent:,} weights {share:.2g} times as "
        f"far as {expected:.3g} clients a round can; to protect whole clients takes more of them (about "
        f"clients={math.ceil(10 * share * setting.clients)}), a smaller model or a larger epsilon"
    )
