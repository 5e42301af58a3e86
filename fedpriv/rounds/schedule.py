"""Cross-device participation: every client takes part in exactly `times` rounds (PrivateFL section 6.6).

The rounds are cut into `times` passes of equal length; in each pass a fresh permutation deals every client to
one round. With a `separation` a client stays within a block of rounds of its pass, and blocks are shuffled in
themselves: rounds of two passes are a pass apart, less the length of a block. Who is dealt where depends on
no data, so nothing about it is secret and nothing is amplified: a client pays for `times` rounds and no more.
"""

import numpy as np

from fedpriv.errors import UserError


def deal(
    clients: int, rounds: int, times: int, sample_rate: float, rng: np.random.Generator, separation: int = 1
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
    if separation > length:
        raise UserError(
            f"separation={separation}: a pass of participations={times} over rounds={rounds} has only "
            f"{length} rounds; lower it"
        )
    block = length - separation + 1  # rounds
    groups = np.array_split(rng.permutation(clients), length)
    found = list(groups)
    for _ in range(times - 1):
        for first in range(0, length, block):
            inside = groups[first : first + block]
            ends = np.cumsum([len(group) for group in inside])[:-1]
            found += np.split(rng.permutation(np.sort(np.concatenate(inside))), ends)
        groups = found[-length:]
    return [np.sort(part) for part in found]
