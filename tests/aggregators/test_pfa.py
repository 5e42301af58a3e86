"""WeiAvg, PFA, PFA+ and the projected upload: by hand, by reduction to each other, and in bytes."""

import numpy as np
import pytest
import torch

from fedpriv.aggregators import subspace
from fedpriv.aggregators.pfa import PFA
from fedpriv.aggregators.pfa_plus import PFAPlus
from fedpriv.aggregators.public_only import PublicOnly
from fedpriv.aggregators.weiavg import WeiAvg
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.building import build
from fedpriv.engine.layout import Layout
from fedpriv.errors import UserError
from fedpriv.mechanisms.base import NoPrivacy
from fedpriv.parts.wiring import wire
from fedpriv.rounds.setting import Round, Setting
from fedpriv.uploads.projected import Projected
from tests.conftest import SMALL
from tests.helpers.settings import round_of, setting

EPSILON = [0.1, 10.0, 0.2, 8.0, 0.3]  # clients 1 and 3 are public at fraction 0.4
NONE = torch.Generator()


def prepared(aggregator, facts: Setting):
    aggregator.setup(facts)
    return aggregator


def projected(aggregator: PFAPlus, facts: Setting) -> Projected:
    """The codec onto this aggregator's subspace."""
    wiring = wire(NoPrivacy(), FedAvg(), aggregator, Projected(), facts)
    codec = Projected()
    aggregator.setup(facts, wiring)
    codec.setup(facts, wiring)
    return codec


def uploads_of(clients: int, width: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(clients, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_weiavg_and_public_only_by_hand():
    facts = setting(epsilon=EPSILON)
    uploads = uploads_of(5)
    everyone = round_of(facts)
    update = prepared(WeiAvg(), facts)(uploads, everyone)
    expected = sum(e / 18.6 * u for e, u in zip(EPSILON, uploads, strict=True))
    assert torch.allclose(update, expected, atol=1e-6)
    public = prepared(PublicOnly(fraction=0.4), facts)(uploads, everyone)
    assert torch.allclose(public, (10 * uploads[1] + 8 * uploads[3]) / 18, atol=1e-6)


def test_pfa_by_hand_projects_the_private_mean_per_tensor():
    """Two tensors of three numbers, one public client: its own direction in each."""
    facts = setting(clients=2, epsilon=[1.0, 3.0], tensors=2)
    private = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    public = torch.tensor([2.0, 0.0, 0.0, 0.0, 3.0, 4.0])
    update = prepared(PFA(fraction=0.5), facts)(torch.stack([private, public]), round_of(facts))
    # (0, 3, 4)/5 . (4, 5, 6) = 39/5, times (0, 3, 4)/5
    projected = torch.tensor([1.0, 0.0, 0.0, 0.0, 39 * 3 / 25, 39 * 4 / 25])
    assert torch.allclose(update, 0.75 * public + 0.25 * projected)


@pytest.mark.parametrize("options", [{}, {"centred": True}])
def test_full_rank_pfa_is_weiavg(options):
    """Seven public updates span each tensor of two numbers, centred or not."""
    facts = setting(clients=10, epsilon=np.linspace(1, 10, 10).tolist())
    uploads, everyone = uploads_of(10), round_of(facts)
    pfa = prepared(PFA(k=2, fraction=0.7, **options), facts)(uploads, everyone)
    assert torch.allclose(pfa, prepared(WeiAvg(), facts)(uploads, everyone), atol=1e-6)
    lower = prepared(PFA(k=1, fraction=0.7, **options), facts)(uploads, everyone)
    assert not torch.allclose(lower, pfa, atol=1e-3)


def test_a_basis_is_that_of_the_singular_value_decomposition():
    rows = uploads_of(4, 50)
    basis = subspace.top_directions(rows, 3)
    assert torch.allclose(basis @ basis.T, torch.eye(3, dtype=rows.dtype), atol=1e-12)
    right = torch.linalg.svd(rows, full_matrices=False).Vh[:3]
    assert torch.allclose(basis.T @ basis, right.T @ right, atol=1e-10)
    # No more directions than the rows have, none where they are zero.
    assert len(subspace.top_directions(rows, 9)) == 4
    assert len(subspace.top_directions(rows[:1].expand(3, -1), 3)) == 1
    assert len(subspace.top_directions(torch.zeros(3, 50), 2)) == 0
    assert len(subspace.top_directions(rows / 0, 2)) == 0


@pytest.mark.parametrize("centred", [False, True])
def test_projection_is_idempotent_and_in_single_precision_too(centred):
    layout = Layout({"a": torch.zeros(40, 20), "b": torch.zeros(20)})
    public = uploads_of(5, 820).float()
    space = subspace.of_updates(public, layout, k=4, centred=centred)
    once = space.project(uploads_of(7, 820, seed=1).float())
    assert torch.allclose(space.project(once), once, atol=1e-5)
    assert space.numbers == 8 and space.coordinates(once).shape == (7, 8)


def test_rank_one_takes_the_public_mean():
    facts = setting(epsilon=EPSILON, tensors=1)
    uploads, everyone = uploads_of(5), round_of(facts)
    aggregator = prepared(PFA(k=3, rank1=True, fraction=0.4), facts)
    (basis,) = aggregator.subspace_of(uploads[[1, 3]], everyone).bases
    mean = (10 * uploads[1] + 8 * uploads[3]) / 18
    assert basis.shape == (1, 6) and abs(abs(float(basis[0] @ mean)) - float(mean.norm())) < 1e-6


def test_the_random_projection_is_unbiased():
    """E[V^T V x] = x; one coordinate's deviation over n draws of k rows is at most |x| sqrt(2 / (n k))."""
    facts = setting(epsilon=EPSILON, tensors=1)
    aggregator = prepared(PFA(k=2, projection="random"), facts)
    x = torch.tensor([[3.0, 0.0, 0.0, 0.0, 0.0, 4.0]])
    draws, total = 4000, torch.zeros(6)
    round_ = round_of(facts)
    aggregator.draw(round_, torch.Generator().manual_seed(0))
    for _ in range(draws):
        total += aggregator.subspace_of(x, round_).project(x)[0]
    assert (total / draws - x[0]).abs().max() < 5 * 5 * np.sqrt(2 / (2 * draws))


def test_pfa_plus_with_an_unchanged_subspace_is_pfa():
    """The public clients stay in one direction per tensor, so last round's subspace is this round's."""
    facts = setting(epsilon=EPSILON, tensors=2)
    plain, plus = prepared(PFA(fraction=0.4), facts), prepared(PFAPlus(fraction=0.4), facts)
    codec = projected(plus, facts)
    direction = uploads_of(1)[0]
    for number in range(4):
        uploads = uploads_of(5, seed=number)
        uploads[[1, 3]] = torch.tensor([[1.0], [0.5 + number]], dtype=torch.float64) * direction
        round_ = Round(**{**vars(round_of(facts)), "number": number})
        sent, _ = codec.encode(uploads, round_, NONE)
        assert torch.allclose(plus(codec.decode(sent, round_), round_), plain(uploads, round_), atol=1e-6)


def test_pfa_plus_uses_the_last_rounds_subspace_and_keeps_it():
    facts = setting(epsilon=EPSILON, tensors=2)
    plus = prepared(PFAPlus(fraction=0.4), facts)
    first, second = uploads_of(5, seed=0), uploads_of(5, seed=1)
    round_ = round_of(facts)
    plus(first, round_)
    kept = plus.state()
    expected = plus.combine(second, round_, plus.subspace)
    again = prepared(PFAPlus(fraction=0.4), facts)
    again.load({k: [t.clone() for t in v] if isinstance(v, list) else v.clone() for k, v in kept.items()})
    assert torch.equal(plus(second, round_), expected)
    assert torch.equal(again(second, round_), expected)
    assert prepared(PFAPlus(), facts).state() == {}


LOGREG = {"weight": (10, 784), "bias": (10,)}
CNN = {
    "conv1": (16, 1, 8, 8), "bias1": (16,), "conv2": (32, 16, 4, 4), "bias2": (32,), "dense": (32, 512),
    "bias3": (32,), "out": (10, 32), "bias4": (10,),
}  # fmt: skip


@pytest.mark.parametrize(("shapes", "parameters", "tensors"), [(LOGREG, 7850, 2), (CNN, 26010, 8)])
def test_the_uplink_of_figure_7_in_bytes(shapes, parameters, tensors):
    """50 clients, 5 public; 40 a round, of whom 4 public; k = 1. The paper: 12 of 113 MB, 40 of 377 MB.

    4 public clients over 100 rounds are 12.0 and 39.7 MiB: the paper counts neither the warm-up round nor
    what private clients send. Ours counts both.
    """
    facts = setting(clients=50, epsilon=[10.0] * 5 + [0.1] * 45)
    layout = Layout({n: torch.zeros(s) for n, s in shapes.items()})
    assert layout.sent == parameters
    facts = Setting(**{**vars(facts), "layout": layout})
    plus = PFAPlus()
    codec = projected(plus, facts)
    clients = [0, 1, 2, 3, *range(5, 41)]
    used = []
    for number in range(3):
        round_ = Round(
            **{**vars(round_of(facts, clients)), "number": number, "start": torch.zeros(parameters)}
        )
        sent, size = codec.encode(uploads_of(40, parameters, number).float(), round_, NONE)
        used.append((size, codec.downlink(round_)))
        plus(codec.decode(sent, round_), round_)
    whole = 40 * parameters * 4
    later = (4 * parameters + 36 * tensors) * 4
    assert [size for size, _ in used] == [whole, later, later]
    assert [down for _, down in used] == [whole, whole + 36 * parameters * 4, whole + 36 * parameters * 4]
    assert 1 - tensors / parameters > 0.999  # a private client's saving; the paper says over 99 %
    paper = {2: 12, 8: 40}[tensors]
    assert 100 * 4 * parameters * 4 / 2**20 == pytest.approx(paper, rel=0.01)
    assert whole + 99 * later == {2: 13_718_912, 8: 45_475_488}[tensors]


# -- in a run

PRIVATE = ("model=logreg", "clients=10", "rounds=4", "batch_size=64", "threads=1", "budget=mixgauss1")


def test_a_round_is_drawn_until_a_public_client_is_there(config):
    trainer = build(config(*PRIVATE, "agg=public_only", "sample_rate=0.2", "rounds=30")).trainer
    (public,) = np.flatnonzero(trainer.aggregator.public)
    assert trainer.setting.budgets[public] > 5
    for _ in range(6):
        result = trainer.round()
        assert public in result.clients and len(result.clients) == 2


def test_training_ends_with_the_last_public_client(config):
    trainer = build(config(*PRIVATE, "agg=pfa", "rounds=2")).trainer
    assert not trainer.exhausted
    trainer.ledger.participations[trainer.aggregator.public] = 2
    assert trainer.exhausted and trainer.ledger.eligible().sum() == 9


def test_a_schedule_without_a_public_client_is_refused(config):
    overrides = ("agg=pfa", "participations=1", "rounds=5", "sample_rate=0.2")
    with pytest.raises(UserError, match="has no public client"):
        build(config(*PRIVATE, *overrides))


def test_pfa_plus_alone_selects_its_upload_and_saves_bytes(config):
    run = build(config(*PRIVATE, "agg=pfa_plus"))
    assert isinstance(run.trainer.upload, Projected)
    first, second = run.trainer.round(), run.trainer.round()
    parameters, tensors = run.trainer.setting.layout.sent, 2
    assert first.uplink == 10 * parameters * 4
    assert second.uplink == (parameters + 9 * tensors) * 4
    with pytest.raises(UserError, match="only aggregator=pfa_plus"):
        build(config(*PRIVATE, "upload=projected"))


@pytest.mark.parametrize("agg", ["weiavg", "pfa", "pfa_plus", "public_only"])
@pytest.mark.parametrize(
    "other",
    [
        ("transform=linear",),
        ("algorithm=fedprox",),
        ("model=mlp", "model.sizes=[8]"),
        ("model=linear", "algorithm=dp_scaffold"),
    ],
)
def test_the_ledger_is_unchanged_by_post_processing(config, agg, other):
    """Any composition with these aggregators spends and proves what the plain mean does."""
    reports = []
    for aggregator in ("mean", agg):
        trainer = build(config(*PRIVATE, *other, f"agg={aggregator}")).trainer
        for _ in range(3):
            trainer.round()
        assert trainer.theta.isfinite().all()
        report = trainer.ledger.report(noise_seeded=True)
        del report["not_covered"]  # the budgets, which the server uses
        reports.append(report)
    assert reports[0] == reports[1] and max(reports[0]["clients"]["epsilon_claimed"]) > 5


@pytest.mark.parametrize("agg", ["weiavg", "pfa"])
def test_client_level_privacy_refuses_weights_without_a_bound(config, agg):
    with pytest.raises(UserError, match="does not bound one client's weight"):
        build(config(*SMALL, "dp=cdp", f"agg={agg}"))


def test_a_continued_run_keeps_the_subspace(config):
    whole = build(config(*PRIVATE, "agg=pfa_plus")).trainer
    for _ in range(4):
        whole.round()
    first = build(config(*PRIVATE, "agg=pfa_plus")).trainer
    first.round(), first.round()
    second = build(config(*PRIVATE, "agg=pfa_plus")).trainer
    second.load(first.state())
    second.round(), second.round()
    assert torch.equal(whole.theta, second.theta)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PFA(k=0),
        lambda: PFA(fraction=0),
        lambda: PFA(rank1=True, centred=True),
    ],
)
def test_bad_options_are_refused(wrong):
    with pytest.raises(UserError, match=r"aggregator\."):
        wrong()


def test_the_budgets_are_drawn_in_the_run_folder(fedpriv, one_run):
    done = fedpriv("run", *PRIVATE, "rounds=1", "agg=pfa", "sample_rate=1.0")
    assert done.code == 0, done.err
    assert (one_run() / "budgets.png").stat().st_size > 5000
