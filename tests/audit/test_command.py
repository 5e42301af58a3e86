"""`fedpriv audit` from the command line: files, exit codes, and one line for what makes no sense."""

import json

import numpy as np
import pytest

from fedpriv.audit import mechanism, membership, one_run
from fedpriv.audit.taps import Bench
from fedpriv.building import build

TINY = ("model=logreg", "clients=5", "rounds=3", "batch_size=16", "threads=1")
HERE = "hydra.run.dir=a"


def one_line(result) -> None:
    assert result.code == 2 and "\n" not in result.err.strip() and "Traceback" not in result.err


def test_it_writes_what_it_found_and_does_it_once(fedpriv, tmp_path):
    words = ("audit", "sensitivity", "--choices", "4", "dp=ldp", *TINY, HERE)
    first = fedpriv(*words)
    assert first.code == 0 and "does NOT prove" in first.out
    kept = json.loads((tmp_path / "a/audit.json").read_text())
    assert kept["violated"] is False and set(kept["results"]) == {"sensitivity"}
    assert kept["results"]["sensitivity"]["details"]["largest_move_over_bound"] > 0.5
    assert (tmp_path / "a/audit.png").stat().st_size > 1000
    again = fedpriv(*words)
    assert again.code == 0 and "already done" in again.out


def test_a_broken_promise_is_exit_code_one(fedpriv, tmp_path):
    broken = ("dp=none", "dp_variant._target_=tests.audit.own.Quieter", "epsilon=30", *TINY, HERE)
    result = fedpriv("audit", "sensitivity", "--choices", "4", *broken)
    assert result.code == 1 and "VIOLATED  sensitivity, move of the server's update" in result.out
    assert json.loads((tmp_path / "a/audit.json").read_text())["violated"] is True


def test_a_bound_from_one_run_is_below_the_promise_and_finds_missing_noise(fedpriv, tmp_path, monkeypatch):
    words = ("audit", "one-run", "--canaries", "500", "dp=ldp", "epsilon=2", *TINY)
    assert fedpriv(*words, HERE).code == 0
    kept = json.loads((tmp_path / "a/audit.json").read_text())["results"]["one-run"]
    assert 0 <= kept["bound"] < kept["against"] and kept["details"]["canaries"] == 500
    from tests.audit.test_sensitivity import DPSGD, private

    monkeypatch.setattr(DPSGD, "private", private(1.0, 0.002))
    found = fedpriv(*words, "hydra.run.dir=b")
    assert found.code == 1
    bare = json.loads((tmp_path / "b/audit.json").read_text())["results"]["one-run"]
    assert bare["bound"] > bare["against"] and bare["violated"] is True


def test_canaries_of_clients_with_little_noise_count_most(config):
    """Three of four clients have noise for epsilon 0.1, which tells nothing; one has it for 16."""
    words = ("budget=list", "budget.epsilons=[0.1,0.1,0.1,16]", "dp=ldp", *TINY, "clients=4")
    found = one_run.audit(Bench(config(*words)), 800, "server")
    assert found.bound > 0.5 and found.bound < found.against


def test_clients_by_coin_and_by_estimate(fedpriv, tmp_path):
    result = fedpriv("audit", "one-run", "one-shot", "--canaries", "40", "dp=cdp", *TINY, HERE)
    assert result.code == 0 and "an estimate, no bound" in " ".join(result.out.split()).replace("│ ", "")
    kept = json.loads((tmp_path / "a/audit.json").read_text())["results"]
    assert kept["one-shot"]["is_bound"] is False and kept["one-run"]["bound"] <= kept["one-run"]["against"]


def test_members_and_images_of_a_run_without_privacy(fedpriv, tmp_path):
    words = ("dp=none", "clients=5", "rounds=3", "model=logreg", "threads=1", "lr=0.5", HERE)
    result = fedpriv("audit", "membership", "inversion", *words)
    assert result.code == 0
    kept = json.loads((tmp_path / "a/audit.json").read_text())["results"]
    assert 0.4 < kept["membership"]["details"]["auc"] < 1
    means = kept["inversion"]["details"]["means"]
    assert means["no noise"]["ssim"] > 0.5 and (tmp_path / "a/audit_images.png").exists()
    assert (tmp_path / "a/summary.json").exists(), "the run itself was run"


def test_a_model_that_did_not_learn_says_so(config):
    """Ten classes: chance is 0.1, and a tenth of the way from there to 1 is 0.19."""
    trainer = build(config(*TINY, "dp=none")).trainer
    unlearnt, learnt = (membership.audit(trainer, accuracy, 10) for accuracy in (0.18, 0.2))
    assert unlearnt.says.startswith("the model did not learn (accuracy 0.180, chance 0.100)")
    assert not unlearnt.violated and "auc" not in unlearnt.details and 0 < learnt.details["auc"] < 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one-run", "--canaries", "5"), "too few"),
        (("one-run", "--canaries", "many"), "whole number"),
        (("one-run", "--view", "moon"), "server or models"),
        (("mechanism", "--draws", "39", "dp=cdp"), "too few for any bound; ask for 40"),
        (("one-rum",), "no such kind"),
        (("one-run", "--canary", "50"), "audit --canary: no such option"),
        (("one-run", "--canaries", "4000", "model=logreg", "clients=2"), "fewer canaries"),
    ],
)
def test_bad_input_is_one_line(fedpriv, words, said):
    result = fedpriv("audit", *words, "rounds=2", HERE)
    one_line(result)
    assert said in result.err


def test_so_few_draws_show_something():
    """The least that are allowed: twenty of either side, all told apart."""
    apart = mechanism.told_apart(np.ones(mechanism.LEAST), np.zeros(mechanism.LEAST), 0.0)
    assert apart == pytest.approx(mechanism.lower_bound(20, 0, 20, 0.0)) and apart > 0.5


def test_options_of_ones_own_are_audited(fedpriv, tmp_path):
    (tmp_path / "mine" / "dp_variant").mkdir(parents=True)
    text = "_target_: tests.audit.own.Cubed\n"
    (tmp_path / "mine" / "dp_variant" / "cubed.yaml").write_text(text)
    words = ("--config-dir", str(tmp_path / "mine"), "dp=cubed", "epsilon=30", *TINY, HERE)
    assert fedpriv("audit", "mechanism", "--draws", "40", *words).code == 0


def test_the_folder_of_another_run_is_refused(fedpriv):
    assert fedpriv("run", *TINY, HERE).code == 0
    result = fedpriv("audit", "sensitivity", *TINY, "lr=0.3", HERE)
    one_line(result)
    assert "another config" in result.err


def test_where_an_attack_has_no_meaning_it_says_so(fedpriv, tmp_path):
    result = fedpriv("audit", "one-run", "one-shot", "mechanism", "dp=none", *TINY, HERE)
    kept = json.loads((tmp_path / "a/audit.json").read_text())["results"]
    assert result.code == 0 and all("unit none" in r["says"] for r in kept.values()) and len(kept) == 3
    fedpriv("audit", "one-shot", "dp=ldp", *TINY, "hydra.run.dir=b")
    says = json.loads((tmp_path / "b/audit.json").read_text())["results"]["one-shot"]["says"]
    assert "unit sample" in says


def test_help(fedpriv):
    shown = fedpriv("audit", "--help")
    assert shown.code == 0 and "one-shot" in shown.out and "--canaries" in shown.out
