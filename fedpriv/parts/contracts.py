"""What each seam promises, as checks that any plug-in can be put through: `fedpriv check mine.Trimmed`.

tests/contracts runs them on every option there is. A check is tried on the part alone, with five clients and
a model of six weights, or in a small run on digits.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fedpriv.aggregators.base import Aggregator
from fedpriv.aggregators.mean import Mean
from fedpriv.aggregators.sum import Sum
from fedpriv.algorithms.base import Algorithm
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.building import build, make
from fedpriv.config.composing import compose
from fedpriv.config.options import target_of
from fedpriv.engine.layout import Layout
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import Mechanism
from fedpriv.parts.declarations import Wiring
from fedpriv.parts.wiring import wire
from fedpriv.privacy import accountants
from fedpriv.privacy.events import Event, Joint, SampledGaussian
from fedpriv.privacy.skellam import SampledSkellam
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round, Setting
from fedpriv.rounds.trainer import Trainer
from fedpriv.servers.base import Server
from fedpriv.stages.base import Stage
from fedpriv.uploads.base import Upload
from fedpriv.uploads.plain import Plain
from fedpriv.uploads.secure_sum import SecureSum

SEAMS: dict[str, type] = {
    "dp_variant": Mechanism,
    "algorithm": Algorithm,
    "aggregator": Aggregator,
    "upload": Upload,
    "server": Server,
    "stage": Stage,
}
SMALL = ("model.sizes=[8]", "clients=4", "rounds=3", "batch_size=64", "threads=1", "dp_variant=none")
_WIDTH, _CLIENTS, _DRAWS = 6, 5, 300
_HUGE = 1e3


class Broken(Exception):
    """A promise that is not kept, in one line."""


class Untold(Exception):
    """A promise that cannot be tried here, and why."""


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Bench:
    """One plug-in in its seam, and a config of a small run that holds it."""

    group: str
    cfg: DictConfig

    def part(self) -> Any:
        return make(self.cfg, self.group)

    def checks(self) -> list[Check]:
        alone: dict[str, Callable[[Callable[[], Any]], Iterator[Check]]] = {
            "dp_variant": _mechanism,
            "aggregator": _aggregator,
            "upload": _upload,
        }
        own = alone.get(self.group)
        return [*(own(self.part) if own else ()), *_in_a_run(self)]


def seam_of(target: object) -> str:
    """The group a class belongs to, by its base."""
    for group, base in SEAMS.items():
        if isinstance(target, type) and issubclass(target, base):
            return group
    bases = ", ".join(base.__name__ for base in SEAMS.values())
    raise UserError(
        f"{getattr(target, '__name__', target)}: derives from none of {bases}; give it such a base"
    )


def bench(target: str, options: dict[str, Any], overrides: tuple[str, ...] = ()) -> Bench:
    """The plug-in `target` with options of its own, between parts it fits."""
    group = seam_of(target_of("check", {"_target_": target}))
    cfg = compose([*SMALL, *overrides])
    OmegaConf.set_struct(cfg, False)
    cfg[group] = {"_target_": target, **options}
    facts = getattr(make(cfg, group), "facts", None)
    shares = getattr(facts, "sends", "") == "shares" or getattr(facts, "takes", None) == {"shares"}
    if shares and group != "aggregator":
        cfg.aggregator = {"_target_": "fedpriv.aggregators.sum.Sum"}
        if group != "upload":
            cfg.upload = {"_target_": "fedpriv.uploads.secure_sum.SecureSum"}
        if group != "dp_variant":
            cfg.dp_variant = {"_target_": "fedpriv.mechanisms.ddp.DDP", "bits": 20}
    if getattr(facts, "needs_subspace", False):
        cfg.aggregator = {"_target_": "fedpriv.aggregators.pfa_plus.PFAPlus"}
    return Bench(group, cfg)


# -- facts to try a part with


def setting() -> Setting:
    samples = np.array([40, 10, 80, 30, 20])
    per_epoch = -(-samples // 10)
    return Setting(
        dataset="contract",
        clients=_CLIENTS,
        rounds=4,
        sample_rate=0.8,
        batch_size=10,
        sizes=samples,
        steps=per_epoch,
        epochs_steps=per_epoch,
        layout=Layout({f"t{i}": torch.zeros(_WIDTH // 3) for i in range(3)}),
        budgets=np.full(_CLIENTS, 8.0),
        delta=1e-3,
        accountant=accountants.create("rdp"),
        device=torch.device("cpu"),
    )


def round_of(facts: Setting, clients: Any, constant: bool = True) -> Round:
    who = np.array(clients, dtype=np.int64)
    return Round(
        number=0,
        clients=who,
        expected=facts.sample_rate * facts.clients if constant else float(max(1, len(who))),
        constant_weights=constant,
        sizes=facts.sizes[who],
        steps=facts.steps[who],
        lr=0.1,
        budgets=facts.budgets[who],
        noise=np.ones(len(who)),
        start=torch.zeros(_WIDTH),
    )


def source(number: int = 0) -> Source:
    return Source(number.to_bytes(32, "little"))


def _uploads(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, _WIDTH, generator=torch.Generator().manual_seed(seed))


def _want(kept: bool, otherwise: str) -> None:
    if not kept:
        raise Broken(otherwise)


# -- aggregators


def _aggregator(new: Callable[[], Aggregator]) -> Iterator[Check]:
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
            for first in range(_CLIENTS):
                who = sorted((first + i) % _CLIENTS for i in range(size))
                if part.accepts(np.array(who)):
                    yield who

    def any_number() -> None:
        part = ready()
        for who in cohorts(part, range(1, _CLIENTS + 1)):
            result = drawn(ready(), _uploads(len(who)), round_of(facts, who, constant=False))
            _want(
                result.shape == (_WIDTH,) and bool(result.isfinite().all()),
                f"{len(who)} uploads of {_WIDTH} finite numbers give {tuple(result.shape)}, "
                f"{int((~result.isfinite()).sum())} of them not finite",
            )

    def overflow() -> None:
        uploads = _uploads(_CLIENTS)
        uploads[1], uploads[2, 0] = torch.nan, torch.inf
        result = drawn(ready(), uploads, round_of(facts, range(_CLIENTS), constant=False))
        _want(result.shape == (_WIDTH,), f"gives shape {tuple(result.shape)}")

    def numbers() -> None:
        uploads = _uploads(_CLIENTS).double()
        result = drawn(ready(), uploads, round_of(facts, range(_CLIENTS), constant=False))
        _want(result.dtype == torch.float64, f"float64 uploads give {result.dtype}")

    def device() -> None:
        part, round_ = ready(), round_of(facts, range(_CLIENTS), constant=False)
        part.draw(round_, torch.Generator().manual_seed(7))
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                where = part(torch.empty(_CLIENTS, _WIDTH, device="cuda"), round_).device.type
        except DataDependentOutputException as problem:
            raise Untold("it looks at values, which a device that is not there has none of") from problem
        except RuntimeError as problem:
            if "not linked" in str(problem):  # it brings something of its own there, as it should
                raise Untold("it asks for the device itself, which is not there") from problem
            raise Broken(f"uploads on cuda: {str(problem).splitlines()[0]}") from problem
        _want(where == "cuda", f"uploads on cuda give a result on {where}")

    def order() -> None:
        part, uploads = ready(), _uploads(_CLIENTS)
        kind = part.facts.symmetric
        if kind == "nothing":
            raise Untold("it says that it needs to know who sent what")
        mixed = uploads[[3, 0, 4, 1, 2]]
        if kind == "values":
            mixed = torch.stack([uploads[:, j].roll(j) for j in range(_WIDTH)], 1)
        round_ = round_of(facts, range(_CLIENTS), constant=False)
        close = torch.allclose(drawn(part, uploads, round_), drawn(ready(), mixed, round_), atol=1e-5)
        _want(close, f"it says symmetric={kind!r}, but the result depends on it")

    def weight() -> None:
        part = ready(Wiring(constant_weights=True))
        if not part.facts.bounded:
            raise Untold("it says that nothing bounds a client's weight; dp=cdp refuses it")
        bounds = set()
        for who in cohorts(part, range(1, _CLIENTS + 1)):
            round_, uploads = round_of(facts, who), _uploads(len(who))
            most = part.largest_weight(round_)
            bounds.add(most)
            whole = drawn(part, uploads, round_)
            for place in range(len(who)):
                moved = uploads.clone()
                moved[place] += _HUGE
                by = float((drawn(part, moved, round_) - whole).norm()) / (_HUGE * math.sqrt(_WIDTH))
                _want(
                    by <= most * (1 + 1e-4), f"client {who[place]} of {who} weighs {by:.4g}, not {most:.4g}"
                )
                rest = who[:place] + who[place + 1 :]
                if rest and part.accepts(np.array(rest)):
                    other = drawn(
                        part, torch.cat([uploads[:place], uploads[place + 1 :]]), round_of(facts, rest)
                    )
                    left = float((whole - other).norm()) / float(uploads[place].norm())
                    _want(left <= most * (1 + 1e-4), f"leaving out client {who[place]} moves more than that")
        _want(len(bounds) == 1, f"the largest weight depends on who takes part: {sorted(bounds)}")

    def models() -> None:
        part = ready()
        if "models" not in part.facts.takes:
            raise Untold("it says that it takes updates only")
        one = _uploads(1)
        part = ready(Wiring(sends="models", aggregator=part, constant_weights=False))
        round_ = replace(round_of(facts, range(_CLIENTS), constant=False), start=one[0])
        made = drawn(part, one.expand(_CLIENTS, -1).clone(), round_)
        _want(torch.allclose(made, one[0], atol=1e-5), "of equal models it makes another model")

    def answers() -> None:
        part = ready()
        if "answers" not in part.facts.takes:
            raise Untold("it says that it is no mean")
        round_ = round_of(facts, range(_CLIENTS), constant=False)
        a, b = _uploads(_CLIENTS, 1), _uploads(_CLIENTS, 2)
        both = drawn(part, a + b, round_)
        apart = drawn(part, a, round_) + drawn(part, b, round_)
        _want(
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


# -- uploads


def _upload(new: Callable[[], Upload]) -> Iterator[Check]:
    facts = setting()

    def through(count: int) -> tuple[Tensor, Tensor, int]:
        part = new()
        shares = part.facts.takes == {"shares"}
        keeper = None
        if part.facts.needs_subspace:
            from fedpriv.aggregators.pfa_plus import PFAPlus

            keeper = PFAPlus()
            keeper.setup(facts)
        part.setup(facts, Wiring(sends="shares" if shares else "updates", bits=8, aggregator=keeper))
        sent = (_uploads(count) * 40).abs().int() if shares else _uploads(count)
        coded, size = part.encode(sent, round_of(facts, range(count)), source())
        return sent, part.decode(coded, round_of(facts, range(count))), size

    def nobody() -> None:
        _, seen, size = through(0)
        _want(len(seen) == 0 and size == 0, f"nobody's messages give {len(seen)} rows and {size} bytes")

    def arrives() -> None:
        for count in (1, 2, _CLIENTS):
            sent, seen, size = through(count)
            part = new()
            if part.facts.takes == {"shares"}:
                if len(seen):
                    left = (seen.sum(0) - sent.sum(0)) % 2**8
                    vanish = part.facts.shows_cohort
                    _want(vanish or not left.any(), "the sum that arrives is not that of what was sent")
                continue
            _want(seen.shape == sent.shape, f"{tuple(sent.shape)} arrives as {tuple(seen.shape)}")
            if part.facts.mixes == "nothing":
                _want(torch.equal(seen, sent), "it says it mixes nothing, but what arrives is another")
            elif part.facts.mixes == "rows":
                same = sorted(map(tuple, seen.tolist())) == sorted(map(tuple, sent.tolist()))
                _want(same, "rows arrive changed")
            _want(torch.equal(seen.sort(0).values, sent.sort(0).values), "values arrive changed")
            _want(size > 0, "it counts no bytes")

    yield Check("an empty round: nothing arrives, nothing is counted", nobody)
    yield Check("what arrives is what was sent, up to the order it says it mixes", arrives)


# -- mechanisms


def _mechanism(new: Callable[[], Mechanism]) -> Iterator[Check]:
    facts = setting()
    if getattr(new(), "facts", None) and new().facts.participation.fixed:
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
        _want(
            promised.unit in (part.facts.unit, "none"),
            f"facts protect a {part.facts.unit}, not the guarantee",
        )
        _want(
            promised.noise.shape == (_CLIENTS,) == promised.kinds.shape,
            "noise and kinds are not one a client",
        )
        _want(int(promised.kinds.max()) < len(promised.claimed), "kinds picks a charge there is not")

    def nobody() -> None:
        update = released(ready(), torch.zeros(0, _WIDTH), [], 0)
        _want(
            update.shape == (_WIDTH,) and bool(update.isfinite().all()),
            "no finite update of the model's width",
        )

    def alone() -> None:
        update = released(ready(), _uploads(1), [2], 0)
        _want(
            update.shape == (_WIDTH,) and bool(update.isfinite().all()),
            "no finite update of the model's width",
        )

    def overflow() -> None:
        parts = ready()
        if parts[0].facts.passes_on:
            raise Untold("it says that messages leave as they came")
        if parts[3].provable is None:
            raise Untold("nothing is provable of it, and it says so")
        messages = _uploads(_CLIENTS)
        messages[0], messages[1, 0], messages[2] = torch.nan, torch.inf, 1e38
        update = released(parts, messages, range(_CLIENTS), 0)
        _want(
            bool(update.isfinite().all()),
            "a client whose message overflowed makes an update that is not finite",
        )

    def apart() -> None:
        part, _, _, promised = ready()
        if part.facts.sends == "shares":
            raise Untold("its noise belongs to the sum")
        if promised.provable is None and promised.unit != "none":
            raise Untold("nothing is provable of it, and it says so")
        messages = _uploads(_CLIENTS)
        whole = part.client(messages.clone(), round_of(facts, range(_CLIENTS)), source())
        for absent in range(_CLIENTS):
            who = [client for client in range(_CLIENTS) if client != absent]
            rest = part.client(messages[who].clone(), round_of(facts, who), source())
            _want(torch.equal(whole[who], rest), "a client's absence changes what others send")

    def noise() -> None:
        parts = ready()
        part, promised = parts[0], parts[3]
        if promised.provable is None:
            raise Untold("nothing is provable of it, and it says so")
        wanted = [_multiplier(charge) for charge in promised.provable]
        if part.facts.unit == "sample":
            private = part.training.private(np.arange(_CLIENTS), source())
            if private is None:
                raise Broken("samples are protected, but local training has no noise")
            has = (private.noise_std / private.clip_norm).double().numpy()
            for client, kind in enumerate(promised.kinds):
                _enough(float(has[client]), wanted[kind], 1e-4)
            return
        zero, one = torch.zeros(_CLIENTS, _WIDTH), torch.zeros(_CLIENTS, _WIDTH)
        one[2] = _HUGE
        still = -one if part.facts.replaces else zero
        moves = [released(ready(), a, range(_CLIENTS), 1) for a in (one, still)]
        moved = float((moves[0] - moves[1]).norm())
        drawn = [released(ready(), zero, range(_CLIENTS), 2 + s) for s in range(_DRAWS)]
        # Its error is below 5 / sqrt(2 n) of it.
        error = 5 / math.sqrt(2 * _DRAWS * _WIDTH)
        _enough(float(torch.stack(drawn).std()) / moved, wanted[promised.kinds[2]], error)

    def state() -> None:
        parts, others = ready(), ready()
        for number in range(3):
            released(parts, _uploads(_CLIENTS, number), range(_CLIENTS), number)
        others[0].load(copy.deepcopy(parts[0].state()))
        results = [released(p, _uploads(_CLIENTS, 9), range(_CLIENTS), 9) for p in (parts, others)]
        _want(torch.equal(*results), "after state and load it releases something else")

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
    _want(has >= wanted * (1 - error), f"noise of {has:.4g} times the largest move, charged as {wanted:.4g}")


# -- all of them, in a run


def _in_a_run(bench: Bench) -> Iterator[Check]:
    def trainer() -> Trainer:
        return build(copy.deepcopy(bench.cfg)).trainer

    def trained(run: Trainer, who: np.ndarray) -> None:
        """A round with these clients able, [K] bool."""
        run.ledger.eligible = lambda: who  # type: ignore[method-assign]
        before = run.theta
        result = run.round()
        _want(run.theta.shape == before.shape, "the model changes its shape")
        _want(
            run.theta.dtype == before.dtype and run.theta.device == before.device, "the model moves elsewhere"
        )
        _want(bool(run.theta.isfinite().all()), f"a round of {len(result.clients)} clients: not finite")

    def rounds() -> None:
        run = trainer()
        for _ in range(2):
            trained(run, np.ones(run.setting.clients, dtype=bool))

    def few(count: int) -> None:
        run = trainer()
        orders = [np.roll(np.arange(run.setting.clients), -first) for first in range(run.setting.clients)]
        able = next((o[:count] for o in orders if run.aggregator.accepts(np.sort(o[:count]))), None)
        if able is None:
            raise Untold("its aggregator does without such rounds")
        trained(run, np.isin(np.arange(run.setting.clients), able))

    def state() -> None:
        one, other = trainer(), trainer()
        one.round()
        other.load(copy.deepcopy(one.state()))
        one.round(), other.round()
        _want(torch.equal(one.theta, other.theta), "a run that was stopped goes on with other numbers")

    yield Check("in a run: two rounds", rounds)
    yield Check("in a run: a round of one client", lambda: few(1))
    yield Check("in a run: an empty round", lambda: few(0))
    yield Check("in a run: stopped and continued it is the same", state)


# -- the command


def tried(check: Check) -> tuple[str, str]:
    """ "ok", "-" (cannot be tried) or "FAILED", and why."""
    try:
        check.run()
    except Untold as why:
        return "-", str(why)
    except (Broken, UserError) as why:
        return "FAILED", str(why)
    except Exception as problem:  # whatever somebody's part raises
        return "FAILED", f"{type(problem).__name__}: {problem}".splitlines()[0]
    return "ok", ""


HELP = """\
usage: fedpriv check MODULE.CLASS [option=value ...] [-- group=option ...]
Puts a mechanism, aggregator, algorithm, upload, server or stage through what its seam promises.
Behind -- stands what its run needs, such as model.norm=batch.
"""


def main(rest: list[str]) -> int:
    if not rest or {"-h", "--help"} & set(rest):
        print(HELP, end="")
        return 0 if rest else 2
    cut = rest.index("--") if "--" in rest else len(rest)
    if wrong := [o for o in rest[1:cut] if "=" not in o]:
        raise UserError(f"{wrong[0]}: give an option as name=value")
    options = OmegaConf.to_container(OmegaConf.from_dotlist(rest[1:cut]))
    assert isinstance(options, dict)
    held = bench(rest[0], {str(k): v for k, v in options.items()}, tuple(rest[cut + 1 :]))
    failed = 0
    print(f"{rest[0]}: {held.group}")
    for check in held.checks():
        state, why = tried(check)
        failed += state == "FAILED"
        print(f"  {state:<7}{check.name}" + (f": {why}" if why else ""))
    return 1 if failed else 0
