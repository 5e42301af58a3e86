"""A part of every client's training data that is held out, to choose options on: never test data.

Every sample is held out or not by a draw of its own, so that one sample's absence changes nothing for others.
"""

from dataclasses import replace

import numpy as np

from fedpriv.errors import UserError
from fedpriv.partitions.base import Split


def hold_out(split: Split, share: float, rng: np.random.Generator) -> Split:
    """The split with about `share` of every client's training samples in `validation`; a client that would be
    left without any keeps its first."""
    if not share:
        return split
    drawn = rng.random(1 + max(int(part.max()) for part in split.train if len(part))) < share
    train, held = [], []
    for part in split.train:
        out = drawn[part]
        out[0] &= not out.all()
        train.append(part[~out])
        held.append(part[out])
    if not any(map(len, held)):
        raise UserError(f"validation={share:g}: no sample of any client is held out; raise it")
    return replace(split, train=train, validation=held)
