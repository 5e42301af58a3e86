"""LDP-FL: two-point answers, their ranges, the shuffled stream, and what all of it is worth."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv.aggregators.mean import Mean
from fedpriv.aggregators.pfa import PFA
from fedpriv.aggregators.sum import Sum
from fedpriv.aggregators.weighted import Weighted
from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.building import build
from fedpriv.engine.layout import Layout
from fedpriv.errors import UserError
from fedpriv.mechanisms.duchi import Duchi
from fedpriv.mechanisms.ldp import LDP
from fedpriv.parts.wiring import wire
from fedpriv.privacy.shuffling import Reports, composed, largest_local_epsilon, shuffled_epsilon
from fedpriv.uploads.plain import Plain
from fedpriv.uploads.shuffled import Shuffled, Stream, id_bytes
from tests.conftest import SMALL, refused
from tests.helpers.draws import source
from tests.helpers.settings import DIMENSION, epsilon_of, round_of, setting


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def answers(weight, epsilon, count=40_000, center=0.1, radius=0.5):
    """`count` answers for one weight, as `count` clients."""
    facts = setting(clients=count, epsilon=epsilon)
    mechanism = Duchi(center=center, radius=radius)
    mechanism.setup(facts)
    messages = torch.full((count, DIMENSION), weight)
    return mechanism.client(messages, round_of(facts), source())[:, 0]


# -- the two points


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("weight", [0.1, 0.35, -0.4])
def test_an_answer_is_one_of_two_points_unbiased_and_of_the_exact_variance(weight, epsilon):
    sent = answers(weight, epsilon).double()
    reach = 0.5 * (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    points = torch.tensor([0.1 - reach, 0.1 + reach], dtype=torch.float64)
    torch.testing.assert_close(sent.unique(), points, rtol=1e-6, atol=1e-6)
    variance = reach**2 - (weight - 0.1) ** 2
    assert abs(float(sent.mean()) - weight) < 5 * math.sqrt(variance / len(sent))
    fourth = ((points - weight) ** 4 * torch.tensor([0.1 + reach - weight, weight - 0.1 + reach])).sum()
    fourth = float(fourth) / (2 * reach)
    error = 5 * math.sqrt(max(0, fourth - variance**2) / len(sent)) + 1e-5
    assert abs(float(((sent - weight) ** 2).mean()) - variance) < error


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_two_ends_of_the_range_differ_by_exactly_e_to_the_epsilon(epsilon):
    """Theorem 1: the likelier answer has probability e^eps / (e^eps + 1) at an end of the range."""
    likely = math.exp(epsilon) / (math.exp(epsilon) + 1)
    for weight, sign in ((0.6, 1), (-0.4, -1)):
        share = float((sign * (answers(weight, epsilon) - 0.1) > 0).double().mean())
        assert abs(share - likely) < 5 * math.sqrt(likely * (1 - likely) / 40_000)


@pytest.mark.parametrize("weight", [7.0, math.inf])
def test_weights_beyond_the_range_are_clipped_and_bad_ones_answered_like_any_other(weight):
    same = answers(0.6, 1.0)
    assert torch.equal(answers(weight, 1.0), same)
    assert torch.equal(answers(math.nan, 1.0), answers(0.0, 1.0))


def test_every_client_answers_with_its_own_epsilon():
    facts = setting(clients=3, epsilon=[0.5, 1.0, 4.0])
    mechanism = Duchi(radius=1.0)
    guarantee = mechanism.setup(facts)
    sent = mechanism.client(torch.zeros(2, DIMENSION), round_of(facts, [0, 2]), source())
    expected = [1 / math.tanh(0.25), 1 / math.tanh(2.0)]
    assert sent.abs()[:, 0].tolist() == pytest.approx(expected)
    assert guarantee.noise.tolist() == pytest.approx([expected[0], 1 / math.tanh(0.5), expected[1]])


def test_a_block_at_a_time_is_only_about_memory(monkeypatch):
    facts = setting(clients=5)
    mechanism = Duchi()
    mechanism.setup(facts)
    messages = torch.randn(5, DIMENSION, generator=seeded(1)) / 10
    once = mechanism.client(messages, round_of(facts), source())
    monkeypatch.setattr("fedpriv.mechanisms.duchi._BLOCK", 2 * DIMENSION)
    assert torch.equal(once, mechanism.client(messages, round_of(facts), source()))


# -- ranges


def test_an_adaptive_range_is_each_layers_own_up_to_the_cap():
    facts = setting(clients=2)
    named = {"a.weight": torch.zeros(3), "a.bias": torch.zeros(1), "b.weight": torch.zeros(2)}
    facts = replace(facts, layout=Layout({**named, "c.weight": torch.zeros(2)}))
    mechanism = Duchi(range="adaptive", cap=0.5, radius=0.2)
    mechanism.setup(facts)
    start = torch.tensor([0.1, 0.3, 0.2, -0.1, 5.0, -4.0, 0.7, 0.7])
    center, radius = mechanism.ranges(start)
    torch.testing.assert_close(center, torch.tensor([0.1] * 4 + [0.5] * 2 + [0.7] * 2))
    torch.testing.assert_close(radius, torch.tensor([0.2] * 4 + [0.5] * 2 + [0.2] * 2))


@pytest.mark.parametrize(("dataset", "radius"), [("mnist", 0.075), ("fmnist", 0.015), ("digits", 0.075)])
def test_the_fixed_range_is_the_papers_for_the_data_set_unless_given(dataset, radius):
    facts = replace(setting(), dataset=dataset)
    found = {}
    for name, mechanism in (
        ("own", Duchi()),
        ("given", Duchi(radius=0.3)),
        ("layers", Duchi(range="adaptive")),
    ):
        mechanism.setup(facts)
        found[name] = mechanism.radius
    assert found == {"own": radius, "given": 0.3, "layers": 0.075}


def test_the_range_follows_the_broadcast_model_and_so_costs_nothing(config):
    trainer = build(config(*SMALL, "dp=duchi", "dp.range=adaptive", "epsilon=1", "partition=iid")).trainer
    before, sent, answer = trainer.theta.clone(), [], trainer.mechanism.client

    def watched(*arguments):
        sent.append(answer(*arguments).clone())
        return sent[-1]

    trainer.mechanism.client = watched
    for _ in range(3):
        trainer.round()
        # Two-point answers are the ends of a range that only the last broadcast model decides.
        center, radius = trainer.mechanism.ranges(before)
        ends = torch.stack([center - radius / math.tanh(0.5), center + radius / math.tanh(0.5)])  # [2, D]
        distance = (sent[-1][:, None] - ends).abs().amin(1)  # [C, D]
        assert (distance <= 1e-5 * radius).all()
        before = trainer.theta.clone()


# -- the round


def test_a_round_makes_the_mean_of_the_answers_the_next_model(config):
    trainer = build(config(*SMALL, "dp=duchi", "epsilon=2", "algorithm.server_lr=1")).trainer
    sent = []
    perturb = trainer.mechanism.perturb
    trainer.mechanism.perturb = lambda *a: sent.append(perturb(*a)) or sent[-1]
    trainer.round()
    assert sent[0].abs().unique().numel() == 1  # nothing but two points leaves a client
    torch.testing.assert_close(trainer.theta, sent[0].mean(0))


def test_many_clients_at_a_large_epsilon_are_nearly_federated_averaging():
    facts = setting(clients=20_000, epsilon=20.0)
    mechanism, mean = Duchi(radius=0.5), Mean()
    mechanism.setup(facts)
    mean.setup(facts)
    start = torch.linspace(-0.2, 0.2, DIMENSION)
    round_ = round_of(facts)
    round_ = replace(round_, start=start)
    messages = torch.linspace(0, 0.3, 20_000)[:, None].expand(-1, DIMENSION)
    update = mechanism.server(
        mean(mechanism.client(messages, round_, source()), round_), round_, 1.0, source()
    )
    assert (update - 0.15).abs().max() < 5 * 0.5 / math.sqrt(20_000)


def test_an_empty_round_leaves_the_model(config):
    """Nobody can pay for another one."""
    trainer = build(config(*SMALL, "dp=duchi")).trainer
    trainer.ledger.eligible = lambda: np.zeros(4, dtype=bool)
    before = trainer.theta.clone()
    assert not len(trainer.round().clients) and torch.equal(trainer.theta, before)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Duchi(radius=0),
        lambda: Duchi(cap=-1),
        lambda: Duchi().setup(setting(epsilon=31)),
        lambda: wire(Duchi(), FedAvg(), Sum(), Plain(), setting()),
        lambda: wire(Duchi(), FedAvg(), PFA(), Plain(), setting()),
        lambda: Shuffled(delay=0),
        lambda: wire(Duchi(), FedAvg(), Weighted(), Shuffled(), setting()),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(wrong):
    refused(wrong)


def test_more_than_a_model_is_refused(config):
    with pytest.raises(UserError, match="sends more"):
        mechanism = Duchi()
        mechanism.setup(setting())
        mechanism.client(torch.zeros(5, 2 * DIMENSION), round_of(setting()), source())


# -- the shuffled stream


def through(messages, seed=0, **options):
    facts = setting(clients=len(messages))
    upload = Shuffled(**options)
    upload.setup(facts)
    sent, size = upload.encode(messages, round_of(facts), source(seed))
    return sent, size, upload.decode(sent, round_of(facts)), upload


@pytest.mark.parametrize("unit", ["parameter", "model"])
def test_the_mean_is_unchanged(unit):
    messages = torch.randn(7, 300, generator=seeded(3))
    _, _, received, _ = through(messages, unit=unit)
    assert received.shape == messages.shape
    torch.testing.assert_close(received.mean(0), messages.mean(0))
    torch.testing.assert_close(received.sort(0).values, messages.sort(0).values)  # nothing lost or made up


def test_no_client_identity_survives():
    """The server gets ids, values and times; of two weights in one row, nothing says they had one sender."""
    clients, width = 10, 20_000
    owner = torch.arange(clients, dtype=torch.float32)[:, None].expand(-1, width)
    (stream,), _, received, _ = through(owner)
    assert {f.name for f in fields(Stream)} == {"ids", "values", "times"}
    # In the stream: what a client sends and when, or after whom, are independent.
    when = (torch.arange(len(stream.values)) * clients // len(stream.values)).long()
    for other in (when[1:], stream.values[:-1].long()):
        table = torch.bincount(other * clients + stream.values[1:].long(), minlength=clients**2)
        assert stats.chi2_contingency(table.view(clients, clients).numpy()).pvalue > 1e-4
    # In what the server makes of it: rows link no two weights.
    pairs = torch.bincount((received[:, :-1] * clients + received[:, 1:]).long().flatten())
    assert stats.chi2_contingency(pairs.view(clients, clients).numpy()).pvalue > 1e-4


def test_model_shuffling_keeps_a_model_together_and_only_loses_whose_it_is():
    owner = torch.arange(50, dtype=torch.float32)[:, None].expand(-1, 30)
    _, _, received, _ = through(owner, unit="model")
    assert (received == received[:, :1]).all() and not torch.equal(received, owner)
    assert received[:, 0].sort().values.tolist() == list(range(50))


def test_the_delays_are_uniform_and_in_order():
    (stream,), _, _, upload = through(torch.zeros(20, 500), delay=3.0)
    assert (stream.times.diff() >= 0).all()
    assert stats.kstest(stream.times.numpy(), "uniform", args=(0, 3)).pvalue > 1e-4
    assert upload.diagnostics() == {"last_arrival": pytest.approx(float(stream.times[-1]))}


@pytest.mark.parametrize("short", [1, 1 << 16])
def test_the_server_collects_each_weight_in_the_order_of_arrival(monkeypatch, short):
    monkeypatch.setattr("fedpriv.uploads.shuffled._SHORT", short)
    monkeypatch.setattr("fedpriv.uploads.shuffled._BLOCK", 900)
    streams, _, received, _ = through(torch.randn(7, 300, generator=seeded(3)))
    arrived = {}
    for stream in streams:
        for one, value in zip(stream.ids.tolist(), stream.values.tolist(), strict=True):
            arrived.setdefault(one, []).append(value)
    assert len(streams) == 3 and received.T.tolist() == [arrived[one] for one in range(300)]


def test_blocks_of_ids_are_only_about_time_and_memory(monkeypatch):
    monkeypatch.setattr("fedpriv.uploads.shuffled._BLOCK", 50)
    messages = torch.randn(7, 31, generator=seeded(3))
    streams, _, received, _ = through(messages)
    assert len(streams) > 1 and torch.cat([s.ids for s in streams]).sort().values.tolist() == sorted(
        list(range(31)) * 7
    )
    torch.testing.assert_close(received.sort(0).values, messages.sort(0).values)


def test_bytes_count_the_ids():
    assert [id_bytes(n) for n in (1, 256, 257, 65_536, 65_537)] == [1, 1, 2, 2, 3]
    messages = torch.zeros(7, 300)
    assert through(messages)[1] == 7 * 300 * (4 + 2)
    assert through(messages, unit="model")[1] == 7 * 300 * 4


def test_an_empty_round_passes():
    assert through(torch.zeros(0, 4))[2].shape == (0, 4)


# -- what it is worth


def test_stated_and_composed_epsilon_by_hand():
    """NOTES section 5: 21,840 weights, epsilon 1, 10 rounds: 218,400."""
    facts = setting(epsilon=1.0)
    facts = replace(facts, layout=Layout({"w": torch.zeros(21_840)}))
    guarantee = Duchi().setup(facts)
    assert epsilon_of(guarantee, facts, 10) == 1.0 and epsilon_of(guarantee, facts, 10, "provable") == 218_400
    assert guarantee.details["epsilon_without_anonymity"] == 218_400
    with_delta = 218_400 * math.tanh(0.5) + math.sqrt(2 * 218_400 * math.log(1000))
    assert guarantee.details["epsilon_without_anonymity_with_delta"] == pytest.approx(with_delta)
    assert guarantee.unit == "client" and "replace" in guarantee.relation


def test_the_shuffle_bound_by_hand_and_its_range():
    # e^eps0 = 2, n = 10^6, delta = 4 e^-9: log(1 + 8/3 (sqrt(2 * 9 / 10^6) + 2 / 10^6))
    expected = math.log1p(8 / 3 * (math.sqrt(18e-6) + 2e-6))
    assert shuffled_epsilon(math.log(2), 10**6, 4 * math.exp(-9)) == pytest.approx(expected)
    limit = largest_local_epsilon(10_000, 1e-6)
    assert limit == pytest.approx(math.log(10_000 / (16 * math.log(2e6))))
    assert shuffled_epsilon(limit * 0.999, 10_000, 1e-6) is not None
    assert shuffled_epsilon(limit * 1.001, 10_000, 1e-6) is None
    assert shuffled_epsilon(0.1, 100, 1e-6) is None  # 16 log(2 / delta) is 232 already


def test_the_shuffle_bound_holds_for_randomised_response():
    """Against the exact divergence: the sum of n answers, when one of them changes its mind."""
    local, n, delta = 1.0, 2000, 1e-4
    bound = shuffled_epsilon(local, n, delta)
    keep = math.exp(local) / (1 + math.exp(local))
    for ones in (0, n // 2, n - 1):  # how many of the others say yes
        rest = np.convolve(
            stats.binom.pmf(np.arange(ones + 1), ones, keep),
            stats.binom.pmf(np.arange(n - ones), n - 1 - ones, 1 - keep),
        )
        p, q = (np.convolve(rest, pair) for pair in ([1 - keep, keep], [keep, 1 - keep]))
        for a, b in ((p, q), (q, p)):
            assert np.clip(a - math.exp(bound) * b, 0, None).sum() <= delta


def test_composition_of_many_small_releases():
    assert composed(0.5, 4, 1e-5) == 2.0  # few: the plain sum is better
    k, epsilon = 10_000, 0.01
    expected = k * epsilon * math.tanh(epsilon / 2) + epsilon * math.sqrt(2 * k * math.log(1e5))
    assert composed(epsilon, k, 1e-5) == pytest.approx(expected) and expected < k * epsilon


def prepared(clients, epsilon, unit="parameter", rounds=2):
    facts = setting(clients=clients, rounds=rounds, epsilon=epsilon)
    upload = Shuffled(unit=unit)
    upload.setup(facts)
    return facts, upload.amplify(Duchi().setup(facts))


def cost(guarantee, facts, rounds):
    """The provable epsilon of clients who are all alike."""
    (charge,) = guarantee.provable
    return facts.accountant.epsilon(charge, rounds, facts.delta)


def test_the_papers_setting_gains_nothing_and_says_so():
    facts, guarantee = prepared(100, 1.0)
    assert cost(guarantee, facts, 2) == DIMENSION * 2
    assert "gains nothing" in guarantee.flaws[1] and guarantee.details["shuffle"]["gains"] is False
    assert guarantee.details["shuffle"]["epsilon_total_shuffled"] is None


def test_a_large_crowd_gains_what_the_bound_gives():
    facts, guarantee = prepared(100_000, 1.0)
    share = facts.delta / (2 * DIMENSION * 2)
    each = shuffled_epsilon(1.0, 100_000, share)
    total = composed(each, DIMENSION * 2, facts.delta / 2)
    assert cost(guarantee, facts, 2) == pytest.approx(total) and total < 1.0
    assert facts.accountant.epsilon(guarantee.claimed[0], 2, facts.delta) == 1.0
    assert guarantee.details["shuffle"]["gains"] is True and len(guarantee.flaws) == 1
    # A whole model of 6 weights hides less well than each of them.
    _, whole = prepared(100_000, 1.0, unit="model")
    assert total < cost(whole, facts, 2) < DIMENSION * 2
    assert cost(whole, facts, 2) == Reports(6.0, 1, 100_000).amplified(2, facts.delta)


def test_a_gain_says_what_it_rests_on():
    _, guarantee = prepared(100_000, 1.0)
    assert "shuffled messages only" in guarantee.relation and "local" not in guarantee.relation
    assert guarantee.sampler == "uniform shuffle of the reports of 100000 participants"
    assert any("other participants" in line for line in guarantee.not_covered)


def test_only_those_who_take_part_hide_each_other():
    facts = setting(clients=200_000, rounds=2, rate=0.25, epsilon=1.0)
    everyone = setting(clients=200_000, rounds=2, epsilon=1.0)
    found = []
    for own in (facts, everyone, replace(facts, schedule=[np.arange(30_000), np.arange(40_000)])):
        upload = Shuffled()
        upload.setup(own)
        guarantee = upload.amplify(Duchi().setup(own))
        found.append((guarantee.details["shuffle"]["reports_in_a_shuffle"], cost(guarantee, own, 1)))
    assert [crowd for crowd, _ in found] == [50_000, 200_000, 30_000]
    assert found[1][1] < found[0][1] < found[2][1]


def test_what_composition_alone_gives_is_not_credited_to_shuffling():
    charge = Reports(0.003, 650)
    shuffled = replace(charge, crowd=238)
    assert shuffled.amplified(1, 1e-3) > charge.with_delta(1, 1e-3) == shuffled.epsilon(1, 1e-3)


def test_nothing_stated_lies_below_what_is_spent(config):
    """Clients are drawn, so some take part more often than the average."""
    run = build(config(*SMALL, "dp=duchi", "upload=shuffled", "sample_rate=0.5", "rounds=8", "clients=6"))
    trainer, width = run.trainer, run.trainer.setting.layout.sent
    while trainer.next_round < 8:
        trainer.round()
    assert trainer.ledger.participations.max() > 4
    report = trainer.ledger.report(noise_seeded=True)
    assert report["epsilon_without_anonymity"] == 8 * 8 * width >= report["epsilon_provable_max"]
    assert trainer.wiring.participation.rounds_charged(trainer.setting) == 8


def test_what_is_shuffled_never_costs_more_than_what_is_not():
    for clients in (10, 1000, 100_000):
        for epsilon in (0.1, 1.0, 5.0):
            for unit in ("parameter", "model"):
                facts, guarantee = prepared(clients, epsilon, unit)
                for count in (1, 2, 50):
                    assert cost(guarantee, facts, count) <= epsilon * DIMENSION * count * (1 + 1e-12)


def test_where_the_bound_says_nothing():
    facts = setting(clients=4, epsilon=[1.0, 1.0, 2.0, 2.0])
    upload = Shuffled()
    upload.setup(facts)
    plain = Duchi().setup(facts)
    mixed = upload.amplify(plain)
    assert mixed.provable is plain.provable and "budgets differ" in mixed.flaws[-1]
    sgd = LDP().setup(facts)
    assert upload.amplify(sgd).provable is sgd.provable
    assert Plain().amplify(plain) is plain


# -- whole runs


@pytest.mark.parametrize(
    "method",
    [
        (),
        ("upload=shuffled",),
        ("upload=shuffled", "upload.unit=model"),
        ("dp.range=adaptive", "upload=shuffled", "sample_rate=0.5"),
        ("participations=1", "rounds=2", "sample_rate=0.5"),
    ],
)
def test_duchi_runs_at_once(config, method):
    trainer = build(config(*SMALL, "dp=duchi", *method)).trainer
    while trainer.next_round < trainer.setting.rounds:
        trainer.round()
    width = trainer.setting.layout.sent
    counts = trainer.ledger.participations
    assert trainer.ledger.provable().tolist() == (8.0 * width * counts).tolist()
    assert trainer.ledger.claimed().max() == 8.0


def test_shuffling_changes_the_order_and_nothing_else(config, same_draws):
    models = []
    for upload in ("plain", "shuffled"):
        trainer = build(config(*SMALL, "dp=duchi", f"upload={upload}")).trainer
        trainer.round()
        models.append(trainer.theta)
    torch.testing.assert_close(*models)


def test_a_continued_run_gives_the_same_numbers(config):
    options = (*SMALL, "dp=duchi", "dp.range=adaptive", "upload=shuffled", "epsilon=2")
    whole = build(config(*options)).trainer
    for _ in range(2):
        whole.round()
    state = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in whole.state().items()}
    whole.round()
    again = build(config(*options)).trainer
    again.load(state)
    again.round()
    assert torch.equal(whole.theta, again.theta)


def test_the_papers_networks(config, tmp_path):
    """Section 5: a two-layer CNN of 21,840 weights, and a small VGG."""
    from fedpriv.models.cnn import two_layer_cnn, vgg_small

    assert sum(p.numel() for p in two_layer_cnn((1, 28, 28), 10).parameters()) == 21_840
    assert sum(p.numel() for p in vgg_small((3, 32, 32), 10).parameters()) == 550_570
