"""PLDP-FL: noise by hand, aggregators against their closed forms, the learning rate against scikit-learn."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import SGDClassifier

from fedpriv.aggregators.mean import Mean
from fedpriv.aggregators.selection import Selection
from fedpriv.aggregators.weighted import Weighted, shares
from fedpriv.algorithms.optimal import Optimal
from fedpriv.building import build
from fedpriv.datasets.digits import Digits
from fedpriv.engine.batches import Plan
from fedpriv.engine.layout import Layout
from fedpriv.errors import UserError
from fedpriv.mechanisms.pldp_gaussian import PLDPGaussian, equation_4
from fedpriv.mechanisms.pldp_sign import PLDPSign
from fedpriv.parts.declarations import Wiring
from fedpriv.privacy import accountants
from tests.conftest import SMALL, refused
from tests.helpers.draws import source
from tests.helpers.settings import DIMENSION, epsilon_of, round_of, setting

LOGREG = ("model=logreg", *SMALL[1:], "partition=iid")
DIGITS = {"delta": 1 / 500, "q": 0.8, "rounds": 10}  # section 5.2.1


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def facts_of(epsilon, delta=1e-5, **more):
    facts = setting(clients=len(epsilon), epsilon=epsilon, **more)
    facts = replace(facts, delta=delta)
    return facts


def round_with(noise, models=None):
    return SimpleNamespace(
        clients=np.arange(len(noise)),
        noise=np.array(noise, dtype=float),
        expected=float(len(noise)),
        start=torch.full((3,), 7.0) if models is None else models,
    )


# -- noise


@pytest.mark.parametrize(
    ("root", "expected"), [("fraction", [151.9, 7.9, 2.5]), ("all", [41.46, 9.447, 5.358])]
)
def test_equation_4_in_both_readings(root, expected):
    """The digits' noise for epsilon 1, 5 and 10: 4 q^2 R / (1 - q) is 128, log(1 / delta) is 6.2146."""
    sigma = equation_4(np.array([1.0, 5.0, 10.0]), root=root, **DIGITS)
    np.testing.assert_allclose(sigma, expected, atol=0.05)


def test_gaussian_noise_is_added_to_clamped_weights():
    facts = facts_of([1.0, 5.0, 10.0], 1 / 500)
    width = 40_000
    facts = replace(facts, layout=Layout({"w": torch.zeros(width)}))
    mechanism = PLDPGaussian(clip_norm=2.0, sensitivity=0.1)
    mechanism.setup(facts)
    round_ = round_of(facts, [0, 2])
    round_ = replace(round_, start=torch.ones(width))
    sent = mechanism.client(torch.full((2, width), 8.0), round_, source())  # 9, clamped to 2
    sigma = 0.1 * equation_4(np.array([1.0, 10.0]), root="fraction", **DIGITS)
    for row, std in zip(sent.double(), sigma, strict=True):
        assert abs(float(row.mean()) - 2) < 5 * std / math.sqrt(width)
        assert abs(float(row.std()) - std) < 5 * std / math.sqrt(2 * width)


def test_signs_follow_the_normal_distribution_function():
    """Eqs. 6 and 7 with section 5.3's c = 4, Delta_2 = 8."""
    facts = facts_of([5.0, 15.0])
    width = 40_000
    facts = replace(facts, layout=Layout({"w": torch.zeros(width)}))
    mechanism = PLDPSign(clip_norm=4.0)
    mechanism.setup(facts)
    sigma = 8 / np.array([5.0, 15.0]) * math.sqrt(2 * math.log(1.25e5))
    np.testing.assert_allclose(mechanism.sigma, sigma)
    round_ = round_of(facts)
    round_ = replace(round_, start=torch.zeros(width))
    for weight, clamped in ((1.5, 1.5), (-30.0, -4.0)):
        sent = mechanism.client(torch.full((2, width), weight), round_, source())
        assert sent.unique().tolist() == [-1.0, 1.0]
        likely = norm.cdf(clamped / sigma)
        share = (sent > 0).double().mean(1).numpy()
        assert (np.abs(share - likely) < 5 * np.sqrt(likely * (1 - likely) / width)).all()


def test_the_server_broadcasts_signs_and_zero_where_clients_cancel():
    facts = facts_of([5.0, 5.0])
    mechanism = PLDPSign()
    mechanism.setup(facts)
    round_ = round_of(facts)
    round_ = replace(round_, start=torch.full((3,), 0.25))
    uploads = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0]])
    update = mechanism.server(Mean()(uploads, round_), round_, 1.0, source())
    assert (update + 0.25).tolist() == [1.0, 0.0, -1.0]
    ten = facts_of([5.0] * 10)
    orders = torch.rand(10, 500, generator=torch.Generator().manual_seed(0)).argsort(0)  # five of each sign
    many = round_of(ten)
    aggregate = Mean()(torch.where(orders < 5, 1.0, -1.0), many)
    assert not mechanism.server(aggregate, replace(many, start=torch.zeros(500)), 1.0, source()).any()
    off = PLDPSign(server_sign=False)
    off.setup(facts)
    assert (off.server(torch.tensor([0.2, 0, -0.4]), round_, 1.0, source()) + 0.25).tolist() == pytest.approx(
        [0.2, 0, -0.4]
    )


def test_plain_signs_are_the_baseline_without_privacy():
    facts = facts_of([5.0, 5.0])
    mechanism = PLDPSign(noise=False)
    guarantee = mechanism.setup(facts)
    assert guarantee.unit == "none" and guarantee.provable is None
    sent = mechanism.client(torch.tensor([[0.3, -2, 0, 1, 1, 1]] * 2), round_of(facts), source())
    assert sent[0].tolist() == [1, -1, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", [PLDPGaussian, PLDPSign])
def test_a_diverged_weight_looks_like_any_other(kind):
    facts = facts_of([5.0])
    mechanism = kind()
    mechanism.setup(facts)
    sent = mechanism.client(
        torch.tensor([[math.nan, math.inf, -math.inf, 0, 0, 0]]), round_of(facts), source()
    )
    same = mechanism.client(torch.tensor([[0, 2.0, -2.0, 0, 0, 0]]), round_of(facts), source())
    assert torch.equal(sent, same)


# -- guarantees


@pytest.mark.parametrize("kind", [PLDPGaussian, PLDPSign])
def test_the_stated_epsilon_and_the_gaussian_that_is_really_there(kind):
    facts = facts_of([1.0, 10.0])
    mechanism = kind(clip_norm=2.0)
    guarantee = mechanism.setup(facts)
    assert guarantee.unit == "client" and "replace" in guarantee.relation and guarantee.flaws
    assert epsilon_of(guarantee, facts, 10) == 10.0
    for kind_, sigma in zip(guarantee.kinds, mechanism.sigma, strict=True):
        (event,) = guarantee.provable[kind_]
        assert event.sampling_rate == 1.0
        assert event.noise_multiplier == pytest.approx(sigma / (2 * 2.0 * math.sqrt(DIMENSION)))
    # More rounds cost more in truth, whatever is stated.
    spent = [epsilon_of(guarantee, facts, n, "provable") for n in (1, 10)]
    assert spent[1] > spent[0]


def test_two_clipped_models_are_never_further_apart_than_the_sensitivity():
    facts = facts_of([1.0])
    guarantee = PLDPGaussian(clip_norm=2.0).setup(facts)
    ends = [torch.full((DIMENSION,), s * 1e9).clamp(-2, 2) for s in (1, -1)]
    assert float((ends[0] - ends[1]).norm()) == pytest.approx(guarantee.details["l2_sensitivity_of_a_model"])


# -- data sampling


def test_a_round_trains_on_a_random_part_of_the_data_only():
    facts = setting(clients=2, sizes=[4000, 10], batch=10)
    mechanism = PLDPGaussian(data_rate=0.3)
    mechanism.setup(facts)
    plan = mechanism.training.plan(np.array([0, 1]), torch.empty(0), source())
    assert isinstance(plan, Plan) and plan.active.sum(1).tolist() == facts.steps.tolist()
    used = [
        {int(i) for s in range(plan.size.shape[1]) for i in plan.index[k, s, : plan.size[k, s]]}
        for k in (0, 1)
    ]
    # 400 steps of 10 go over about 1,200 samples more than three times.
    assert abs(len(used[0]) - 0.3 * 4000) < 5 * math.sqrt(4000 * 0.3 * 0.7)
    assert 1 <= len(used[1]) <= 10 and max(used[1]) < 10
    other = mechanism.training.plan(np.array([0, 1]), torch.empty(0), source(1))
    assert used[0] != {int(i) for i in other.index[0].flatten()}


def test_an_empty_draw_still_trains():
    facts = setting(clients=50, sizes=[1] * 50)
    mechanism = PLDPGaussian(data_rate=0.01)
    mechanism.setup(facts)
    plan = mechanism.training.plan(np.arange(50), torch.empty(0), source())
    assert (plan.size == 1).all() and not plan.index.any()


# -- aggregators


def test_weights_are_the_inverse_of_the_noise():
    round_ = round_with([1.0, 2.0, 4.0])
    assert Weighted().weights(round_).tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert Weighted()(torch.tensor([[7.0], [14.0], [28.0]]), round_).tolist() == pytest.approx([12.0])
    assert shares(np.zeros(4)).tolist() == [0.25] * 4  # without noise all count alike
    assert shares(np.array([0.0, 3.0])).tolist() == [1.0, 0.0]


def test_the_noise_that_is_left_has_its_closed_form():
    """NOTES section 2: budgets {1, 1, 10} of the digits leave 71.6 in the plain mean, 4.3 in the weighted."""
    sigma = equation_4(np.array([1.0, 1.0, 10.0]), root="fraction", **DIGITS)
    closed = {Mean: math.sqrt((sigma**2).sum()) / 3, Weighted: math.sqrt(3) / (1 / sigma).sum()}
    assert closed[Mean] == pytest.approx(71.6, abs=0.05) and closed[Weighted] == pytest.approx(4.3, abs=0.05)
    noise = torch.as_tensor(sigma)[:, None] * torch.randn(3, 50_000, generator=seeded(), dtype=torch.float64)
    for kind, std in closed.items():
        left = kind()(noise, round_with(sigma)).std()
        assert abs(float(left) - std) < 5 * std / math.sqrt(2 * 50_000)


def drawn(rule, noise, times=1500, **more):
    """How often each set of clients was selected."""
    selection, generator = Selection(rule=rule, **more), seeded()
    seen: dict[tuple, int] = {}
    for _ in range(times):
        selection.draw(round_with(noise), generator)
        key = tuple(selection._times.int().tolist())
        seen[key] = seen.get(key, 0) + 1
    return {k: v / times for k, v in seen.items()}


def check_shares(seen, expected, times=1500):
    assert set(seen) <= set(expected)
    for key, p in expected.items():
        assert abs(seen.get(key, 0) - p) <= 5 * math.sqrt(p * (1 - p) / times)


# P = 1/6, 1/3, 1/2: omega below 1/6 selects all, below 1/3 two of them, below 1/2 one.
NOISE = [6.0, 3.0, 2.0]


def test_selection_draws_again_until_somebody_is_selected():
    check_shares(drawn("redraw", NOISE), {(1, 1, 1): 1 / 3, (0, 1, 1): 1 / 3, (0, 0, 1): 1 / 3})


def test_selection_as_printed_selects_nobody_as_often_as_the_largest_share_is_missed():
    check_shares(
        drawn("keep", NOISE), {(1, 1, 1): 1 / 6, (0, 1, 1): 1 / 6, (0, 0, 1): 1 / 6, (0, 0, 0): 1 / 2}
    )


def test_independent_selection_has_each_client_at_its_own_share():
    p = [1 / 6, 1 / 3, 1 / 2]
    nobody = math.prod(1 - v for v in p)
    expected = {
        key: math.prod(v if k else 1 - v for k, v in zip(key, p, strict=True)) / (1 - nobody)
        for key in np.ndindex(2, 2, 2)
        if any(key)
    }
    check_shares(drawn("independent", NOISE), expected)


def test_a_number_of_draws_counts_with_multiplicity():
    check_shares(drawn("draws", NOISE), {(1, 0, 0): 1 / 6, (0, 1, 0): 1 / 3, (0, 0, 1): 1 / 2})
    two = drawn("draws", [1.0, 1.0], draws=2)
    check_shares(two, {(2, 0): 0.25, (1, 1): 0.5, (0, 2): 0.25})


def test_the_selected_are_averaged_and_their_noise_is_what_the_draw_says():
    sigma = equation_4(np.array([1.0, 5.0, 10.0]), root="fraction", **DIGITS)
    noise = torch.as_tensor(sigma)[:, None] * torch.randn(3, 50_000, generator=seeded(), dtype=torch.float64)
    for rule in ("redraw", "independent", "draws"):
        selection = Selection(rule=rule, draws=3 if rule == "draws" else 1)
        for seed in range(5):
            selection.draw(round_with(sigma), seeded(seed))
            weights = selection.weights(round_with(sigma)).double().numpy()
            assert weights.sum() == pytest.approx(1)
            std = math.sqrt((weights**2 * sigma**2).sum())
            left = float(selection(noise, round_with(sigma)).std())
            assert abs(left - std) < 5 * std / math.sqrt(2 * 50_000)


@pytest.mark.parametrize(("sends", "kept"), [("models", 7.0), ("answers", 7.0), ("updates", 0.0)])
def test_keep_leaves_the_old_model_whether_models_or_updates_are_sent(sends, kept):
    selection = Selection(rule="keep")
    selection.setup(setting(), Wiring(sends=sends))
    for seed in range(100):
        round_ = round_with([1.0] * 50)  # P = 0.02 each
        selection.draw(round_, seeded(seed))
        if not selection._times.any():
            assert selection(torch.ones(50, 3), round_).tolist() == [kept] * 3
            return
    raise AssertionError("somebody was selected 100 times")


def test_selection_is_repeatable_and_its_own(config, same_draws):
    """The same seed selects the same clients; the batches and the noise do not depend on it."""
    models = []
    for rule in ("redraw", "redraw", "independent"):
        method = ("dp=pldp_gaussian", "agg=selection", f"aggregator.rule={rule}", "clip_norm=5")
        one_key = config(*LOGREG, *method, "noise_seed=os")
        trainer = build(one_key, secret=lambda: bytes(32)).trainer
        sent = []
        perturb = trainer.mechanism.perturb
        trainer.mechanism.perturb = lambda *a, p=perturb, s=sent: s.append(p(*a)) or s[-1]
        trainer.round()
        models.append((trainer.theta, sent[0]))
    assert torch.equal(models[0][0], models[1][0]) and torch.equal(models[0][1], models[2][1])


# -- scikit-learn's learning rate


@pytest.mark.parametrize("alpha", [1e-4, 1e-2])
def test_steps_equal_those_of_scikit_learn(config, alpha):
    """One sample a step. A softmax of two classes on x / sqrt(2) is the binary model w = sqrt(2) W_1 on x."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), np.array([1, 0, 0, 1, 0])
    model = SGDClassifier(loss="log_loss", alpha=alpha, learning_rate="optimal", fit_intercept=False)
    facts = setting(clients=1, sizes=[5], batch=1)
    facts = replace(facts, layout=Layout({"weight": torch.zeros(2, 4)}))
    algorithm = Optimal(alpha=alpha)
    algorithm.setup(facts)
    rates = algorithm.rates(round_of(facts), 5).sent
    pull = algorithm.correction(round_of(facts), None)
    weights = torch.zeros(1, 8, dtype=torch.float64)
    for sample, label, eta in zip(x, y, rates, strict=True):
        model.partial_fit(sample[None], [label], classes=[0, 1])
        seen = torch.as_tensor(sample) / math.sqrt(2)
        chance = (weights.view(2, 4) @ seen).softmax(0)
        gradient = torch.outer(chance - torch.eye(2, dtype=torch.float64)[label], seen).view(1, -1)
        weights -= eta * (gradient + pull(weights, slice(0, 1)))
        ours = math.sqrt(2) * weights[0, 4:].numpy()
        np.testing.assert_allclose(ours, model.coef_[0], rtol=1e-6)


def test_one_step_in_the_engine_equals_scikit_learn(config):
    """The first step from zero: a pass over one sample of a client, in a real round."""
    trainer = build(
        config(*LOGREG, "algorithm=optimal", "dp=none", "clients=1", "partition.samples_per_client=1")
    ).trainer
    x, y = trainer.train.take(trainer.train.owned[0, :1])
    trainer.round()
    weights = trainer.theta[: 10 * 64].view(10, 64)[int(y)].double().numpy()
    model = SGDClassifier(loss="log_loss", learning_rate="optimal")
    model.partial_fit(x.flatten(1).double().numpy(), [1], classes=[0, 1])
    # From zero a binary model moves by eta / 2, the softmax of ten classes by eta (1 - 1 / 10).
    np.testing.assert_allclose(weights, model.coef_[0] * 0.9 / 0.5, rtol=1e-5)
    assert float(trainer.theta[640 + int(y)]) == pytest.approx(float(model.intercept_[0]) * 1.8, rel=1e-5)


def test_the_penalty_spares_biases_and_the_schedule_may_go_on():
    facts = setting(clients=2, sizes=[40, 30], batch=10)
    facts = replace(facts, layout=Layout({"l.weight": torch.zeros(2, 2), "l.bias": torch.zeros(2)}))
    algorithm = Optimal(alpha=0.5, restart=False)
    algorithm.setup(facts)
    assert algorithm.correction(None, None)(torch.ones(1, 6), slice(0, 1)).tolist() == [[0.5] * 4 + [0.0] * 2]
    first, second = (algorithm.rates(SimpleNamespace(number=n), 4).sent for n in (0, 1))
    anew = Optimal(alpha=0.5)
    anew.setup(facts)
    assert first == anew.rates(SimpleNamespace(number=1), 4).sent
    assert second[0] == pytest.approx(1 / (1 / first[-1] + 0.5))
    assert Optimal().rates(SimpleNamespace(number=3), 1).sent == pytest.approx([10.0])


# -- the data, and whole runs


def test_digits_as_the_paper_divides_them():
    data = Digits(normalize="raw", test_size=297).load(None)
    assert len(data.x_train) == 1500 and len(data.x_test) == 297
    pixels = data.prepare(data.x_train, torch.float32)
    assert pixels.min() == 0 and float(pixels.max()) == pytest.approx(16)
    with pytest.raises(UserError, match=r"test_size=1797"):
        Digits(test_size=1797)


@pytest.mark.parametrize(
    "method",
    [
        ("dp=pldp_gaussian",),
        ("dp=pldp_sign",),
        ("dp=pldp_gaussian", "agg=weighted", "algorithm=optimal", "clip_norm=200"),
        ("dp=pldp_gaussian", "agg=selection", "dp.root=all"),
        ("dp=pldp_sign", "agg=selection", "aggregator.rule=keep", "algorithm=optimal", "partition=dirichlet"),
        ("dp=pldp_sign", "agg=weighted", "dp.noise=false"),
        ("dp=ldp", "agg=weighted"),
        ("dp=none", "agg=selection"),
        ("dp=duchi", "agg=weighted"),
    ],
)
def test_parts_compose(config, method):
    trainer = build(config(*LOGREG, *method)).trainer
    for _ in range(2):
        trainer.round()
    if "dp=pldp_sign" in method:
        assert set(trainer.theta.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert trainer.theta.isfinite().all()


def test_without_privacy_no_delta_is_too_large(config):
    assert build(config(*LOGREG, "dp=none")).warnings == []
    assert build(config(*LOGREG, "dp=pldp_sign", "dp.noise=false", "delta=0.5")).warnings == []


def test_a_continued_run_gives_the_same_numbers(config):
    options = (*LOGREG, "dp=pldp_gaussian", "agg=selection", "algorithm=optimal", "algorithm.restart=false")
    whole = build(config(*options)).trainer
    whole.round()
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in whole.state().items()}
    whole.round()
    again = build(config(*options)).trainer
    again.load(state)
    again.round()
    assert torch.equal(whole.theta, again.theta)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PLDPGaussian(data_rate=1.0),
        lambda: PLDPGaussian(sensitivity=0),
        lambda: PLDPSign(clip_norm=-1),
        lambda: PLDPSign().setup(replace(setting(), accountant=accountants.create("prv"))),
        lambda: Selection(draws=0),
        lambda: Selection(draws=2),
        lambda: Optimal(alpha=0),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(wrong):
    refused(wrong)


def test_uneven_weights_are_refused_by_central_dp(config):
    with pytest.raises(UserError, match="does not bound"):
        build(config(*SMALL, "dp=cdp", "agg=weighted"))


# -- what a review found


def test_weights_follow_the_noise_that_is_really_added():
    facts = setting(clients=3, epsilon=[1.0, 5.0, 10.0])
    for mechanism in (PLDPGaussian(), PLDPSign()):
        noise = mechanism.setup(facts).noise
        np.testing.assert_allclose(noise / noise[0], mechanism.sigma / mechanism.sigma[0])


def test_noise_that_does_not_reach_over_the_clip_proves_nothing():
    """Normals end somewhere (gaussian.END): models further apart are told apart outright."""
    facts = setting(epsilon=10.0, delta=0.002)
    wide, narrow = PLDPGaussian(clip_norm=200.0).setup(facts), PLDPGaussian(clip_norm=0.1).setup(facts)
    assert wide.provable is None and wide.if_mended and "outright" in wide.flaws[0]
    assert narrow.provable and narrow.if_mended is None and len(narrow.flaws) == 1
    assert PLDPSign(clip_norm=200.0).setup(facts).provable, "signs do not show how long the noise was"


def test_a_schedule_that_follows_the_largest_client_says_so():
    assert Optimal().facts.not_covered == ()
    assert "most data" in Optimal(restart=False).facts.not_covered[0]


def test_selecting_nobody_keeps_the_model_also_where_the_server_takes_signs():
    mechanism, start = PLDPSign(), torch.tensor([-0.1, 0.0015, 0.1])
    round_ = replace(round_of(setting()), start=start)
    assert not mechanism.server(start.clone(), round_, 1.0, torch.Generator()).any()
    moved = mechanism.server(torch.tensor([-0.2, 0.3, 0.1]), round_, 1.0, torch.Generator())
    torch.testing.assert_close(start + moved, torch.tensor([-1.0, 1.0, 1.0]))


@pytest.mark.parametrize("rule", ["redraw", "keep"])
def test_normalised_averaging_knows_who_is_selected(config, rule):
    options = (
        "algorithm=fednova",
        "agg=selection",
        f"aggregator.rule={rule}",
        "partition=dirichlet",
        "dp=none",
    )
    trainer = build(config(*SMALL, *options)).trainer
    for _ in range(3):
        trainer.round()
    assert trainer.theta.isfinite().all()


@pytest.mark.parametrize("override", ["dp_variant.radius=nan", "dp_variant.center=inf", "dp_variant.cap=nan"])
def test_numbers_that_are_none_are_refused(fedpriv, override):
    done = fedpriv("run", *SMALL, "dp=duchi", override)
    assert done.code == 2 and override.partition("=")[0] in done.err and done.err.count("\n") == 1
