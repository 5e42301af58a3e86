"""Client-batched layers: C copies of a layer side by side, with per-sample gradient norms for free.

Activations stay flat, [C*B, ...], so any network's own forward runs unchanged; only a layer with weights
splits them into [C, B, ...]. On a CPU, where every product counts, batches of different sizes are packed: the
real samples alone, [N, ...], which a layer sees as [1, N, ...] and how many are whose.

A layer remembers its input a and output z; from the gradient g = dL/dz the squared norm of every sample's
weight gradient follows without the gradient itself (||a||^2 ||g||^2 for a matrix; "ghost clipping",
Goodfellow 2015, Li et al. 2022), then one weighted product adds the clipped sum.
`@rule(nn.Linear)` names the layer a class (or what a function returns) stands for; a plug-in may register
its own.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedpriv.engine import ragged

LARGE = 1 << 16  # weights of a matrix from which on a temporary copy of its gradient costs more than calls
SMALL, PASSES = 1 << 14, 8  # weights of a kernel; products that cost as much as a look at one of them
FEW = 32  # outputs up to which a CPU multiplies up to three times as fast with the samples in columns
RULES: dict[type[nn.Module], Callable[[Any], "Stacked"]] = {}
S = TypeVar("S", bound=Callable[[Any], "Stacked"])


def rule(*layers: type[nn.Module]) -> Callable[[S], S]:
    def register(stacked: S) -> S:
        for layer in layers:
            RULES[layer] = stacked
        return stacked

    return register


class Stacked(nn.Module):
    """One layer for C clients; parameters are [C, *shape] tensors bound anew for every chunk of clients."""

    packs = False  # whether the rule also knows packed samples

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.names = [n for n, _ in layer.named_parameters(recurse=False)]
        self.buffer_names = [n for n, b in layer.named_buffers(recurse=False) if b.is_floating_point()]
        self.bound: dict[str, Tensor] = {}
        self.mask: Tensor | None = None  # [C, B], which samples are real
        self.rows: list[int] | None = None  # packed samples: how many are whose
        self.calls: list[tuple[Any, Tensor]] = []
        self.versions: list[tuple[Tensor, int]] = []  # outputs and how often each had been changed by then
        self.recording = False

    def record(self, saved: Any, output: Tensor) -> Tensor:
        """Remember what the gradient rule needs; the output becomes a point to differentiate at."""
        if self.recording:
            if not output.requires_grad:
                output.requires_grad_()
            self.calls.append((saved, output))
            self.versions.append((output, output._version))
        return output

    @property
    def clients(self) -> int:
        return next(iter(self.bound.values())).shape[0]

    @property
    def lead(self) -> int:
        """What the samples of one pass are split into: C clients, or one row of packed samples."""
        return self.clients if self.rows is None else 1

    def each(self, values: Tensor) -> Tensor:
        """A client's own value for each of its samples: [C, ...] -> [C, 1, ...], or [1, N, ...] if packed."""
        if self.rows is None:
            return values[:, None]
        return values.repeat_interleave(torch.tensor(self.rows), 0, output_size=sum(self.rows))[None]

    def sums(self, coefficients: Tensor, values: Tensor) -> Tensor:
        """Each client's weighted sum over its samples of values [C, B, ...], or [1, N, ...] if packed."""
        if self.rows is not None:
            return ragged.sums(coefficients[0], values[0], self.rows)
        total = torch.bmm(coefficients[:, None], values.flatten(2))[:, 0]
        return total.view(len(total), *values.shape[2:])

    def prepare(self, grads: list[Tensor]) -> Any:
        """Join the calls of one pass into what `square_norms` and `add` read."""
        raise NotImplementedError

    def products(self, tape: Any) -> int:
        """Multiplications of one sample's forward pass, to tell heavy layers from light ones."""
        return 0

    def square_norms(self, tape: Any) -> Tensor:
        """Squared norm of every sample's gradient over all parameters of the layer, [C, B]."""
        raise NotImplementedError

    def add(self, tape: Any, targets: dict[str, Tensor], coefficients: Tensor, alpha: float) -> None:
        """targets += alpha * sum over samples of coefficient * gradient, in place."""
        raise NotImplementedError


def rounding(energy: Tensor) -> Tensor:
    """How wrong a sum with cancellation can be: added to a norm, so that the norm is never too small."""
    return 4 * torch.finfo(energy.dtype).eps * energy


def lost(count: int, dtype: torch.dtype) -> float:
    """The most that a sum of `count` squares can lack because the smallest of them count as zero."""
    return 2 * count * torch.finfo(dtype).tiny


def length(values: Tensor) -> Tensor:
    """The norm of what is behind the first two axes, never too small, for what it is multiplied with may be
    huge."""
    count = values.shape[2:].numel()
    norms: Tensor = torch.linalg.vector_norm(values.flatten(2), dim=2) + lost(count, values.dtype) ** 0.5
    return norms


def gram_or_direct(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor | None]:
    """||sum_t g_t a_t^T||_F^2 per sample for a [N, T, I], g [N, T, O], by the cheaper of two ways, [N].

    The second way makes the gradients sum_t g_t a_t^T themselves, [N, O, I], which come along: their sum need
    not be made again, so where they are small it pays before the products alone would say so.
    """
    times, inputs, outputs = a.shape[1], a.shape[2], g.shape[2]
    gram, direct = times * (inputs + outputs), inputs * outputs
    if gram <= direct and not (direct <= SMALL and times * gram > PASSES * direct):
        squares = (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(g, g.transpose(1, 2))).sum((1, 2))
        ours, theirs = a.square().sum((1, 2)), g.square().sum((1, 2))
        squares = squares + rounding(ours * theirs)
        squares = squares + ours * lost(times * outputs, a.dtype) + theirs * lost(times * inputs, a.dtype)
        return squares.clamp(min=0), None
    each = torch.bmm(g.transpose(1, 2), a)
    return each.square().sum((1, 2)), each


def product(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each client's own matrix on its own rows: a [C, N, I], weight [C, O, I], bias [C, O] -> [C, N, O]."""
    if a.is_cpu and weight.shape[1] <= FEW:
        a = a.transpose(1, 2)
        out = torch.bmm(weight, a) if bias is None else torch.baddbmm(bias[:, :, None], weight, a)
        return out.transpose(1, 2).contiguous()
    weight = weight.transpose(1, 2)
    return torch.bmm(a, weight) if bias is None else torch.baddbmm(bias[:, None, :], a, weight)


class Matrix(Stacked):
    """Shared by every layer whose weight acts as a matrix on (possibly many) positions of a sample."""

    packs = True

    def times(self, flat: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Each client's own matrix of [C, O, I] on its rows of [lead, B*T, I], [lead, B*T, O]."""
        if self.rows is None:
            return product(flat, weight, bias)
        return ragged.product(flat[0], weight, bias, self.of(flat.shape[1]))[None]

    def of(self, count: int) -> list[int]:
        """How many of `count` rows are whose, where packed samples have several each."""
        assert self.rows is not None
        positions = count // max(1, sum(self.rows))
        return self.rows if positions == 1 else [size * positions for size in self.rows]

    def prepare(self, grads: list[Tensor]) -> list[Tensor]:
        lead = self.lead
        inputs = [a.reshape(lead, -1, *a.shape[-2:]) for a, _ in self.calls]  # [C, B, T, I]
        outputs = [
            g.reshape(*a.shape[:3], g.shape[-1]) for a, g in zip(inputs, grads, strict=True)
        ]  # [C, B, T, O]
        if len(inputs) == 1:
            return [inputs[0], outputs[0]]
        return [torch.cat(inputs, 2), torch.cat(outputs, 2)]

    def products(self, tape: list[Tensor]) -> int:
        a, g = tape
        return a.shape[2] * a.shape[3] * g.shape[3]

    def square_norms(self, tape: list[Tensor]) -> Tensor:
        a, g = tape
        if a.shape[2] == 1:
            result = (length(a) * length(g)).square()
        else:
            squares, each = gram_or_direct(a.flatten(0, 1), g.flatten(0, 1))
            result = squares.view(a.shape[:2])
            if each is not None:  # `add` need not make them again
                tape.append(each.view(*a.shape[:2], *each.shape[1:]))  # [C, B, O, I]
        if "bias" in self.names:
            result = result + torch.linalg.vector_norm(g.sum(2), dim=2).square()
        return result

    def add(self, tape: list[Tensor], targets: dict[str, Tensor], coefficients: Tensor, alpha: float) -> None:
        a, g, *each = tape
        if "bias" in self.names:
            targets["bias"].add_(self.sums(coefficients, g.sum(2)), alpha=alpha)
        if each:
            self.add_sum(targets["weight"], self.sums(coefficients, each[0]), alpha)
        else:
            scaled = (g * coefficients[:, :, None, None]).flatten(1, 2)  # [C, B*T, O]
            self.add_matrix(targets["weight"], scaled, a.flatten(1, 2), alpha)

    def add_sum(self, target: Tensor, total: Tensor, alpha: float) -> None:
        """target += alpha * total, whose numbers are a gradient's of O rows and I columns."""
        target.add_(total.view(target.shape), alpha=alpha)

    def add_matrix(self, target: Tensor, g: Tensor, a: Tensor, alpha: float) -> None:
        """target += alpha * the product of g [lead, ..., O] and a [lead, ..., I] of each client."""
        if self.rows is not None:
            ragged.add_products(target, g[0], a[0], self.of(g.shape[1]), alpha)
        elif target.is_cpu and target[0].numel() > LARGE:  # straight into the weights
            same = [g.shape[1]] * len(g)
            ragged.add_products(target, g.flatten(0, 1), a.flatten(0, 1), same, alpha)
        else:
            target.baddbmm_(g.transpose(1, 2), a, alpha=alpha)


@rule(nn.Linear)
class StackedLinear(Matrix):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.bound["weight"]  # [C, O, I]
        flat = x.reshape(self.lead, -1, x.shape[-1])  # [C, B*T, I]
        out = self.times(flat, weight, self.bound.get("bias"))
        saved = x.detach().reshape(x.shape[0], -1, x.shape[-1])  # [C*B, T, I]
        return self.record(saved, out.view(*x.shape[:-1], weight.shape[1]))


@rule(nn.Embedding)
class StackedEmbedding(Stacked):
    """A look-up is a product with one-hot rows, so the Gram matrix of the inputs is 'same word or not'."""

    def __init__(self, layer: nn.Embedding):
        super().__init__(layer)
        if layer.max_norm is not None or layer.sparse or layer.scale_grad_by_freq:
            raise NotImplementedError("only plain embeddings have a stacked rule")
        self.padding = layer.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        weight = self.bound["weight"]  # [C, V, E]
        per_client = ids.view(len(weight), -1)  # [C, B*T]
        clients = torch.arange(len(weight), device=ids.device)[:, None]
        out = weight[clients, per_client].view(*ids.shape, -1)
        return self.record(ids, out)

    def prepare(self, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
        ids = torch.cat([i for i, _ in self.calls], 1)
        g = torch.cat(grads, 1)  # [C*B, T, E]
        if self.padding is not None:
            g = g.masked_fill((ids == self.padding)[..., None], 0.0)
        return ids.view(self.clients, -1, ids.shape[1]), g.view(self.clients, -1, *g.shape[1:])

    def square_norms(self, tape: tuple[Tensor, Tensor]) -> Tensor:
        ids, g = tape
        same = (ids[..., :, None] == ids[..., None, :]).to(g.dtype)  # [C, B, T, T]
        squares = (same * (g @ g.transpose(-1, -2))).sum((-1, -2)).clamp(min=0)
        return squares + rounding(g.shape[2] * g.square().sum((-1, -2)))

    def add(
        self, tape: tuple[Tensor, Tensor], targets: dict[str, Tensor], coefficients: Tensor, alpha: float
    ) -> None:
        ids, g = tape
        scaled = (g * (alpha * coefficients)[:, :, None, None]).flatten(1, 2)  # [C, B*T, E]
        place = ids.flatten(1)[..., None].expand_as(scaled)
        targets["weight"].scatter_add_(1, place, scaled)


def stacked_layers(network: nn.Module) -> Iterator[tuple[str, Stacked]]:
    for name, module in network.named_modules():
        if isinstance(module, Stacked):
            yield name, module
