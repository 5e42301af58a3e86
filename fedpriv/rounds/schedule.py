"""Cross-device participation: every client takes part in exactly `times` rounds (PrivateFL section 6.6).

The rounds are cut into `times` passes of equal length; in each pass a fresh permutation deals every client to
one round. Who is dealt where depends on no data, so nothing about it is secret and nothing is amplified: a
client pays for `times` rounds and no more.
"""

import numpy as np

from fedpriv.errors import UserError


def deal(
    clients: int, rounds: int, times: int, sample_rate: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """The clients of every round, ascending."""
    if rounds % times:
        raise UserError(f"participations={times}: rounds={rounds} must be a multiple of it")
    length = rounds // times
    if abs(sample_rate * length - 1) > 1e-6:
        raise UserError(
            f"participations={times} over rounds={rounds} means sample_rate={1 / length:g}, "
            f"not sample_rate={sample_rate:g}; set it"
        )
    if clients < length:
        raise UserError(
            f"participations={times}: clients={clients} cannot fill a pass of {length} rounds; lower rounds"
        )
    passes = [np.array_split(rng.permutation(clients), length) for _ in range(times)]
    return [np.sort(part) for groups in passes for part in groups]
