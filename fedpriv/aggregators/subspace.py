"""Low-rank subspaces of a model's update, one per tensor, and projections onto them (PFA section 4.4).

A basis V [k, p] of the top right singular vectors of m stacked rows A [m, p] comes from the small Gram matrix
A A^T [m, m]: with A A^T = Q S Q^T, V = S^-1/2 Q^T A. Nothing of size p x p is ever made.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.engine.layout import Layout


def top_directions(rows: Tensor, k: int) -> Tensor:
    """The top k right singular vectors of [m, p], orthonormal, [k, p]; fewer where the rank is less."""
    if not bool(rows.isfinite().all()):
        return rows[:0]  # diverged: there is no direction, and the run says so at its end
    values, vectors = torch.linalg.eigh(rows @ rows.T)  # ascending
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    real = values > values[:1].clamp(min=0) * len(rows) * torch.finfo(rows.dtype).eps
    basis = vectors[:, real].T @ rows  # orthogonal up to rounding, which grows as values fall
    orthogonal: Tensor = torch.linalg.qr(basis.T).Q
    return orthogonal.T


def random_directions(width: int, k: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """The Gaussian transform of PFA's Figure 6, [k, width]: entries N(0, 1/k), so that E[V^T V] = I."""
    return torch.randn(k, width, generator=generator, device=like.device, dtype=like.dtype) / math.pow(k, 0.5)


def spans_of(layout: Layout, width: int) -> list[tuple[int, int]]:
    """Where each tensor lies in a message: in the model's shape, or several of that shape in a row."""
    parts, rest = divmod(width, layout.sent)
    assert not rest
    entries = layout.sent_entries
    return [(e.start + n * layout.sent, e.stop + n * layout.sent) for n in range(parts) for e in entries]


@dataclass(frozen=True)
class Subspace:
    """One basis [k_t, p_t] per tensor, and the point [D] it passes through."""

    bases: list[Tensor]
    centre: Tensor  # [D], zero unless the rows were centred
    spans: list[tuple[int, int]]  # where each tensor lies in the update

    @property
    def numbers(self) -> int:
        """Coordinates a client sends: the sum of the bases' dimensions."""
        return sum(len(b) for b in self.bases)

    def coordinates(self, updates: Tensor) -> Tensor:
        """[C, D] -> [C, numbers]."""
        shifted = updates - self.centre
        parts = zip(self.bases, self.spans, strict=True)
        return torch.cat([shifted[:, a:b] @ basis.T for basis, (a, b) in parts], 1)

    def expand(self, coordinates: Tensor) -> Tensor:
        """[C, numbers] -> [C, D]."""
        parts = coordinates.split([len(b) for b in self.bases], 1)
        return torch.cat([c @ basis for c, basis in zip(parts, self.bases, strict=True)], 1) + self.centre

    def project(self, updates: Tensor) -> Tensor:
        return self.expand(self.coordinates(updates))


def of_updates(updates: Tensor, layout: Layout, *, k: int, centred: bool) -> Subspace:
    """Of the stacked public updates [m, D]."""
    centre = updates.mean(0) if centred else torch.zeros_like(updates[0])
    spans = spans_of(layout, updates.shape[1])
    shifted = updates - centre
    return Subspace([top_directions(shifted[:, a:b], k) for a, b in spans], centre, spans)


def at_random(like: Tensor, layout: Layout, *, k: int, generator: torch.Generator) -> Subspace:
    """Of k random directions per tensor."""
    spans = spans_of(layout, len(like))
    bases = [random_directions(b - a, k, generator, like) for a, b in spans]
    return Subspace(bases, torch.zeros_like(like), spans)
