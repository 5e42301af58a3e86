"""validation=0.2: samples of the clients' training data, held out for choosing; test data stay out of it."""

import numpy as np
import pytest

from fedpriv.building import build
from fedpriv.errors import UserError
from fedpriv.partitions.base import Split
from fedpriv.partitions.validation import hold_out
from fedpriv.rounds.metrics import evaluate
from tests.conftest import SMALL

PARTS = [np.arange(0, 400), np.arange(400, 410), np.array([410])]


def held(parts, share=0.25, seed=0):
    return hold_out(Split(parts, [np.array([0])] * len(parts)), share, np.random.default_rng(seed))


def test_every_client_trains_on_the_rest():
    split = held(PARTS)
    for before, train, out in zip(PARTS, split.train, split.validation, strict=True):
        assert np.array_equal(np.sort(np.concatenate([train, out])), before) and len(train)
    assert 70 < len(split.validation[0]) < 130
    assert [len(t) for t in held(PARTS, 0.999).train] >= [1, 1, 1]


def test_a_samples_absence_changes_nothing_for_others():
    whole, without = held(PARTS), held([np.delete(PARTS[0], 7), *PARTS[1:]])
    for side in ("train", "validation"):
        rest = np.setdiff1d(getattr(whole, side)[0], [7])
        assert np.array_equal(rest, getattr(without, side)[0])


def test_nothing_held_out_is_refused_and_zero_leaves_all_as_it_is():
    assert held(PARTS, 0.0).train is PARTS and held(PARTS, 0.0).validation == []
    with pytest.raises(UserError, match="raise it"):
        held([np.array([0])], 0.5)


@pytest.mark.parametrize("more", [(), ("transform=linear",)])
def test_accuracy_is_that_on_the_held_out_samples(config, more):
    run = build(config(*SMALL, "dp=none", "validation=0.3", "rounds=1", *more))
    trainer = run.trainer
    result = trainer.round()
    assert trainer.validation is not None and trainer.setting.sizes.tolist() == [
        len(t) for t in run.split.train
    ]
    right = total = 0
    for client, own in enumerate(run.split.validation):
        x, y = trainer.train.take(run.trainer.train.owned.new_tensor(own))
        index = trainer.train.owned.new_tensor(own)[None]
        rows = np.concatenate([trainer.theta.numpy(), trainer.store["home"][client].numpy()])
        _, correct = trainer.engine.predict(
            trainer.theta.new_tensor(rows)[None],
            trainer.store["statistics"][client : client + 1],
            index,
            trainer.train,
        )
        right, total = right + int(correct.sum()), total + len(y)
        assert len(x) == len(own)
    assert result.validation.accuracy_local == pytest.approx(right / total)
    assert len(trainer.validation.y) == total
    again = evaluate(trainer.engine, lambda c: trainer.theta.expand(len(c), -1), trainer.store, trainer.test)
    assert result.evaluation.accuracy_local == again.accuracy_local  # on test data, as before


def test_it_is_in_the_tables_only_where_it_is_asked_for(fedpriv, one_run):
    import json

    done = fedpriv("run", *SMALL, "rounds=1", "dp=none", "validation=0.2")
    assert done.code == 0
    lines = (one_run() / "metrics.csv").read_text().splitlines()
    row = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    summary = json.loads((one_run() / "summary.json").read_text())
    for view in ("local", "global"):
        assert summary[f"accuracy_{view}_validation"] == float(row[f"accuracy_{view}_validation"])
    local, whole = (summary[f"accuracy_{view}_validation"] for view in ("local", "global"))
    assert f"held out  local {local:.3f}, global {whole:.3f}, last round" in done.out
    assert "held out" not in fedpriv("run", *SMALL, "rounds=1", "dp=none").out
