"""A data set of the user's own, and a run on it."""

import numpy as np

from tests.conftest import SMALL


def features(path, shift: float = 0.0) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 6)).astype(np.float32), np.arange(200) % 4
    x[17, 3] += shift
    np.savez(path, x_train=x[:160], y_train=y[:160], x_test=x[160:], y_test=y[160:])


def on(tmp_path) -> tuple[str, ...]:
    own = ("dataset=features", f"dataset.path={tmp_path / 'own.npz'}", "partition=iid", "checkpoint.every=1")
    return (*SMALL, *own, "hydra.run.dir=here")
