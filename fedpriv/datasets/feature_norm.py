"""Data normalisation (DN) of features: x -> (x - mean) / sqrt(variance), one mean and variance a feature.

Tramer and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021;
PrivateFL, section 6.2.1. Both take the statistics from elsewhere: those of the private training features
themselves depend on every sample and nothing accounts for their release, so they are not used here.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from fedpriv.errors import UserError

DN = Literal["none", "half", "unit", "source"]
FLOOR = 1e-5  # added to a collected variance, as Tramer and Boneh do: a feature may be constant
_ROWS = 4096


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of every column of x [N, d], in double precision without a copy of that size."""
    mean = x.mean(0, dtype=np.float64)
    squares = np.zeros_like(mean)
    for start in range(0, len(x), _ROWS):
        squares += ((x[start : start + _ROWS] - mean) ** 2).sum(0)
    return mean, squares / len(x)


def collected(path: Path, y_train: np.ndarray, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean and variance another file holds, else those of its training features."""
    named = f"dataset.statistics={path}"
    with np.load(path, allow_pickle=False) as content:
        if "y_train" in content and np.array_equal(content["y_train"], y_train):
            raise UserError(
                f"{named}: it has the very training samples of dataset.path (the same labels in the same "
                "order), whose statistics are not private; name features of a public dataset"
            )
        if "mean" in content and "variance" in content:
            mean, variance = content["mean"].astype(np.float64), content["variance"].astype(np.float64)
        elif "x_train" in content:
            mean, variance = moments(content["x_train"])
        else:
            raise UserError(f"{named}: it has neither mean and variance nor x_train; name another file")
    if mean.shape != (features,) or variance.shape != (features,):
        raise UserError(
            f"{named}: its mean and variance have shape {mean.shape} and {variance.shape}, but a sample of "
            f"dataset.path has {features} features; name features of the same encoder"
        )
    if not np.isfinite(mean).all() or not np.isfinite(variance).all() or variance.min() < 0:
        raise UserError(f"{named}: its mean or variance is no number or negative; make the file anew")
    return mean, variance + FLOOR
