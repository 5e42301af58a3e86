"""What one sample, client or run changes in what is released: its own clipped contribution only."""

import copy
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numba import njit
from torch.nn.utils import parameters_to_vector

from fedpriv.building import build
from fedpriv.engine.batches import Plan
from fedpriv.engine.fast import FastEngine
from fedpriv.engine.loop import LoopEngine
from fedpriv.engine.work import Private, Work
from fedpriv.randomness import compiled, gaussian
from fedpriv.randomness.source import Source
from fedpriv.session.claim import KEY
from fedpriv.stages.fedpd.protection import OfClients
from tests.conftest import SMALL
from tests.helpers.draws import source
from tests.helpers.fedpd import distilling, networks, recipe
from tests.helpers.networks import IMAGES, MODELS, make
from tests.helpers.own_data import features, on

CLIP = 0.5


def clipped_sum(engine, name: str, places: list[int], lot: float = 1.0) -> torch.Tensor:
    """Of one client's samples in one step without noise, over the public lot, [P]."""
    network, layout, stats, rows, buffers, samples = make(name)
    plan = Plan(torch.tensor([[places]]), torch.tensor([[len(places)]]), torch.ones(1, 1, dtype=torch.bool))
    work = Work(
        rows=rows[:1].clone(),
        buffers=buffers[:1].clone(),
        clients=torch.tensor([1]),
        plan=plan,
        source=source(5),
        lr=[1.0],
        private=Private(CLIP, torch.zeros(1), lot, None),
    )
    engine(network, layout, stats).train(work, samples)
    return (rows[:1] - work.rows)[0]


@pytest.mark.parametrize("engine", [FastEngine, LoopEngine])
@pytest.mark.parametrize("name", ["cnn_cifar", "mlp"])
def test_a_missing_sample_moves_the_clipped_sum_by_one_clip_at_most(engine, name):
    """Masks by place in the batch would move it by about the root of the batch."""
    everyone = list(range(9))
    whole = clipped_sum(engine, name, everyone)
    for gone in (0, 4, 8):
        without = clipped_sum(engine, name, [p for p in everyone if p != gone])
        assert 0 < (whole - without).norm() <= CLIP * (1 + 1e-6)


@pytest.mark.parametrize("engine", [FastEngine, LoopEngine])
def test_a_samples_weight_does_not_depend_on_how_many_there_are(engine):
    """Its clipped gradient over the public lot of 4, alone or among others; not over the batch's own size."""
    alone = [clipped_sum(engine, "mlp", [place], lot=4.0) for place in (0, 3, 5)]
    assert [float(one.norm()) for one in alone] == pytest.approx([CLIP / 4] * 3)
    torch.testing.assert_close(clipped_sum(engine, "mlp", [0, 3, 5], lot=4.0), sum(alone))


def test_a_network_without_ghost_rules_draws_the_same_masks(monkeypatch):
    """Nested vmap and the oracle: dropout by name there too."""
    from torch import nn

    class Scale(nn.Module):
        """A layer nobody has a rule for."""

        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.by

    def network(*_, **__):
        torch.manual_seed(0)
        features = int(np.prod(IMAGES))
        return nn.Sequential(nn.Flatten(), Scale(), nn.Dropout(0.5), nn.Linear(features, 10))

    monkeypatch.setitem(MODELS, "own", (network, IMAGES))
    fast, loop = (clipped_sum(e, "own", [0, 3, 5]) for e in (FastEngine, LoopEngine))
    torch.testing.assert_close(fast, loop)
    without = clipped_sum(FastEngine, "own", [0, 5])
    assert 0 < (fast - without).norm() <= CLIP * (1 + 1e-6)


def one_round(config, *overrides: str, secret: bytes | None = None):
    run = build(config(*SMALL, *overrides), **({} if secret is None else {"secret": lambda: secret}))
    before = run.trainer.theta.clone()
    run.trainer.round()
    return run.trainer, (run.trainer.theta - before).double()


def test_two_cells_of_a_sweep_do_not_cancel_each_others_noise(config):
    """With shared noise, u = b + s n and u' = b + s' n give b = (s' u - s u') / (s' - s) to 1e-6."""
    options = ("dp=cdp", "lr=1e-9", "weight_decay=0")
    (a, first), (b, second) = (one_round(config, *options, f"epsilon={e}") for e in (2, 8))
    recovered = (b.mechanism.z * first - a.mechanism.z * second) / (b.mechanism.z - a.mechanism.z)
    scale = a.mechanism.z * a.mechanism.clip_norm / 4
    assert recovered.std() > 0.1 * scale  # the bare update is 1e-9
    assert a.source.key != b.source.key
    again, same = one_round(config, *options, "epsilon=2")
    assert torch.equal(first, same) and again.source.key == a.source.key
    _, loop = one_round(config, *options, "epsilon=2", "engine=loop")
    torch.testing.assert_close(loop, first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("other", ["seed=1", "rounds=4", "clip_norm=1", "lr=0.2", "partition_seed=3"])
def test_no_two_runs_share_a_key(config, other):
    keys = {build(config(*SMALL, *more)).trainer.source.key for more in ((), (other,))}
    assert len(keys) == 2
    public = [build(config(*SMALL, *more)).trainer.theta for more in ((), ("rounds=4",))]
    assert torch.equal(*public), "the initial model is public and the same"


def observed(config, variant: str, secret: int):
    """Who takes part in three rounds, the first one's batches of each, and how far the model moved in all."""
    options = (*SMALL, f"dp={variant}", "noise_seed=os", "sample_rate=0.5", "clients=40", "batch_size=8")
    trainer = build(config(*options), secret=lambda: bytes([secret]) * 32).trainer
    plans, made = [], trainer.mechanism.training.plan
    trainer.mechanism.training.plan = lambda *a: plans.append(made(*a)) or plans[-1]
    before = trainer.theta.clone()
    cohorts = [trainer.round().clients.tolist() for _ in range(3)]
    index, size = plans[0].index.tolist(), plans[0].size.tolist()
    taken = [[batch[:n] for batch, n in zip(*rows, strict=True)] for rows in zip(index, size, strict=True)]
    return trainer, cohorts, dict(zip(cohorts[0], taken, strict=True)), trainer.theta - before


@pytest.mark.parametrize("variant", ["ldp", "cdp"])
def test_a_secret_key_decides_noise_batches_and_who_takes_part(config, variant):
    """Nothing of these may follow from the config's seed when the key is the system's."""
    a, b, c = (observed(config, variant, secret) for secret in (1, 1, 2))
    assert not a[0].seeded and a[1] == b[1] != c[1]
    both = a[2].keys() & c[2].keys()  # about ten clients, by chance
    assert a[2] == b[2] and both and all(a[2][client] != c[2][client] for client in both)
    assert torch.equal(a[3], b[3])
    if variant == "cdp":  # the difference of two runs is that of six independent noises
        noise = a[0].mechanism.z * a[0].mechanism.clip_norm / 20
        assert float((a[3] - c[3]).std()) == pytest.approx(noise * 6**0.5, rel=0.2)


def test_rounds_have_noises_of_their_own(config):
    run = build(config(*SMALL, "dp=cdp", "lr=1e-9", "rounds=3"))
    moves = []
    for _ in range(3):
        before = run.trainer.theta.clone()
        run.trainer.round()
        moves.append(run.trainer.theta - before)
    z = torch.stack(moves)
    assert (torch.corrcoef(z) - torch.eye(3)).abs().max() < 5 / z.shape[1] ** 0.5


def test_batches_of_ldp_have_the_variance_of_poisson_sampling(config):
    """Shuffled passes would have batches of one size."""
    run = build(config(*SMALL, "dp=ldp", "batch_size=16", "clients=2"))
    trainer, sizes = run.trainer, []
    for number in range(30):
        plan = trainer.mechanism.training.plan(
            np.arange(2), trainer.train.owned.cpu(), trainer.source.of("batches", number)
        )
        sizes.append(plan.size[0][plan.active[0]].double())
    drawn, n = torch.cat(sizes), int(trainer.setting.sizes[0])
    q = 1 / float(trainer.setting.epochs_steps[0])
    variance = n * q * (1 - q)
    assert abs(drawn.var() - variance) < 5 * variance * (2 / len(drawn)) ** 0.5


# -- the key on the disk


def test_a_key_is_made_whole_for_its_owner_only_and_deleted_at_the_end(fedpriv, tmp_path, monkeypatch):
    secret, original = (*SMALL, "noise_seed=os", "checkpoint.every=1", "hydra.run.dir=a"), FastEngine.train
    rounds = []

    def cut(self, work, data, *groups):
        rounds.append(1)
        if len(rounds) == 3:
            raise RuntimeError("power cut")
        return original(self, work, data, *groups)

    monkeypatch.setattr(FastEngine, "train", cut)
    assert fedpriv("run", *secret).code == 1
    key = tmp_path / "a" / KEY
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
    lies = json.loads((tmp_path / "a/privacy.json").read_text())
    assert any(KEY in line for line in lies["not_covered"]) and lies["noise"].startswith("secure generator")
    assert fedpriv("run", *secret).code == 0
    assert not key.exists(), "whoever has it removes the noise"
    done = json.loads((tmp_path / "a/privacy.json").read_text())
    assert not any(KEY in line for line in done["not_covered"]) and done["noise_seeded"] is False


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_key_is_no_key(fedpriv, tmp_path, content):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / KEY).write_bytes(content)
    refused = fedpriv("run", *SMALL, "noise_seed=os", "hydra.run.dir=a")
    assert (
        refused.code == 2
        and f"{len(content)} bytes instead of 32" in refused.err
        and "\n" not in refused.err.strip()
    )


# -- whose numbers are whose


def local_noise(engine, lr: list[float], **more) -> torch.Tensor:
    """What the noise adds to each client's step, over its deviation, [C, P]; client 1's batches are empty."""
    network, layout, stats, rows, buffers, samples = make("mlp", double=False)
    sizes, lot, std = torch.tensor([[2, 1], [0, 0], [1, 2]]), 4.0, torch.tensor([0.5, 1.0, 2.0])
    moved = []
    for noise in (None, source(7)):
        work = Work(
            rows=rows.clone(),
            buffers=buffers.clone(),
            clients=torch.tensor([0, 1, 2]),
            plan=Plan(torch.arange(2).expand(3, 2, 2).clone(), sizes, torch.ones(3, 2, dtype=torch.bool)),
            source=source(5),
            lr=lr,
            private=Private(CLIP, std, lot, noise),
            **more,
        )
        engine(network, layout, stats).train(work, samples)
        moved.append(work.rows)
    return (moved[0] - moved[1]).double() * lot / std[:, None]


@pytest.mark.parametrize("more", [{}, {"home_lr": 0.5}], ids=["in place", "general"])
@pytest.mark.parametrize(
    "engine",
    [partial(FastEngine, threads=1), partial(FastEngine, threads=2), LoopEngine],
    ids=["one thread", "ahead", "loop"],
)
def test_every_client_step_and_weight_has_its_own_noise(engine, more):
    """A step of length one shows its noise, whatever is in the batch; the other step has length zero."""
    z = torch.cat([local_noise(engine, lr, **more) for lr in ([1.0, 0.0], [0.0, 1.0])])  # [2 C, P]
    count = z.shape[1]
    assert (torch.corrcoef(z) - torch.eye(6)).abs().max() < 5 / count**0.5
    for part in (z[:, ::2], z[:, 1::2], z[:, : count // 2], z[:, count // 2 :]):
        assert ((part.square().mean(1) - 1).abs() < 5 * (2 / part.shape[1]) ** 0.5).all()


def keys_of(config, variant: str, secret: int) -> list[bytes]:
    """Of every source that a part is given in two rounds."""
    trainer = build(
        config(*SMALL, f"dp={variant}", "epsilon=30", "noise_seed=os"), secret=lambda: bytes([secret]) * 32
    ).trainer
    keys = []

    def watch(owner, name):
        original = getattr(owner, name)

        def watched(*given):
            keys.extend(g.key for g in given if isinstance(g, Source))
            keys.extend(g.source.key for g in given if isinstance(g, Work))
            return original(*given)

        object.__setattr__(owner, name, watched)

    participation = copy.copy(trainer.wiring.participation)
    trainer.wiring = replace(trainer.wiring, participation=participation)
    watch(participation, "clients")
    for name in ("plan", "private"):
        watch(trainer.mechanism.training, name)
    for name in ("client", "server"):
        watch(trainer.mechanism, name)
    watch(trainer.upload, "encode")
    watch(trainer.engine, "train")
    trainer.round()
    trainer.round()
    return keys


@pytest.mark.parametrize("variant", ["ldp", "cdp", "ddp"])
def test_every_source_follows_from_the_secret_and_the_round(config, variant):
    """Sampling, batches, local noise, dropout, the clients', the upload's and the server's, in two rounds."""
    one, again, other = (keys_of(config, variant, secret) for secret in (1, 1, 2))
    assert one == again and len(one) == 14 == len(set(one))
    assert not set(one) & set(other)


def test_runs_on_neighbouring_data_share_no_noise(config, tmp_path):
    """Two runs that differ in one sample would cancel it: what is left is the sample."""
    keys = []
    for shift in (0.0, 0.0, 1e-3):
        features(tmp_path / "own.npz", shift)
        keys.append(build(config(*on(tmp_path)[:-1])).trainer.source.key)
    assert keys[0] == keys[1] != keys[2]


def test_the_distilling_server_adds_noise_of_its_own_every_round():
    """Nobody takes part, so a round moves the networks by its noise: 3 * 2 / 2 of deviation."""
    server, moves = distilling(OfClients, recipe(sample_rate=0.5), (5, 5, 5, 5), clip=2.0), []
    server.ledger  # noqa: B018  (calibrates)
    server.mechanism.z = 3.0
    for number in range(2):
        both = networks()
        start = parameters_to_vector([p for n in both for p in n.parameters()]).detach()
        server.merge(both, [], number)
        moves.append(parameters_to_vector([p for n in both for p in n.parameters()]).detach() - start)
    z = torch.stack(moves) / 3
    assert (torch.corrcoef(z) - torch.eye(2)).abs().max() < 5 / z.shape[1] ** 0.5
    assert ((z.square().mean(1) - 1).abs() < 5 * (2 / z.shape[1]) ** 0.5).all()


@compiled._intrinsic
def _normals_of_words(typing, out, words):
    def write(eight, args):
        made = eight.pair(*(eight.load(args[1], n, compiled._VECTOR) for n in range(2)))
        for place, z in enumerate(made):
            eight.store(z, args[0], place)

    return compiled._instructions(write, "floats", "words")


@njit
def normals_of_words(out, words):
    """out [2, 8]: the normals of eight pairs of words [2, 8]."""
    _normals_of_words(compiled._address(out), compiled._address(words))


def test_compiled_normals_reach_as_far_as_the_oracles():
    """The rarest words, which no test can wait for: a radius of sqrt(94 ln 2) = 8.07 deviations."""
    first = np.array([0, 0, 0, 1, 255, 256, 2**31, 2**32 - 1], np.uint32)
    second = np.array([0x1FFFF, 0, 1 << 17, 0, 2**32 - 1, 7, 2**31, 2**32 - 1], np.uint32)
    out = np.zeros((2, 8), np.float32)
    normals_of_words(out, np.stack([first, second]))
    x, y = gaussian.pair(*(torch.from_numpy(w.view(np.int32)) for w in (first, second)))
    assert torch.equal(torch.from_numpy(out), torch.stack([x, y]))
    assert np.hypot(*out)[:2] == pytest.approx((94 * np.log(2)) ** 0.5, rel=1e-6)
