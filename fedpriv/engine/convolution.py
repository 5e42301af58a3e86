"""The convolution for C clients: small kernels as one product over patches, large ones client by client.

A small kernel is one product over copied patches. A large kernel uses torch's own convolution, which copies
no patches, and keeps its input instead of them: a ninth of the memory for 3x3.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from fedpriv.engine import ragged
from fedpriv.engine.rules import Matrix, Stacked, gram_or_direct, product, rule

_LARGE = 1 << 15  # weights of a kernel from which on clients take turns


class _Convolve(torch.autograd.Function):
    """A convolution by C kernels as one batched product; the kernels themselves get no gradient here.

    Columns and outputs keep the channel last, which makes both the gathering of patches and the scattering
    of their gradients copies of contiguous runs.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Any, rows: list[int] | None
    ) -> Any:
        columns, height, width = _columns(x, geometry)  # [C*B, L, K]
        if rows is None:
            out = product(columns.reshape(len(kernel), -1, columns.shape[-1]), kernel, bias)  # [C, B*L, O]
        else:
            ctx.rows = [size * height * width for size in rows]
            out = ragged.products(columns.flatten(0, 1), kernel.transpose(1, 2), ctx.rows, bias)  # [N*L, O]
        ctx.save_for_backward(kernel)
        ctx.packed = rows is not None
        ctx.geometry, ctx.shape, ctx.grid = geometry, x.shape, (height, width)
        ctx.mark_non_differentiable(columns)
        return out.view(x.shape[0], height, width, -1).permute(0, 3, 1, 2), columns

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        (kernel,) = ctx.saved_tensors
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = ctx.geometry
        count, channels, rows, cols = ctx.shape
        height, width = ctx.grid
        flat = grad.permute(0, 2, 3, 1).reshape(-1, kernel.shape[1])
        if ctx.packed:
            back = ragged.products(flat, kernel, ctx.rows)
        else:
            back = torch.bmm(flat.view(len(kernel), -1, kernel.shape[1]), kernel)
        pieces = back.view(count, height, width, kh, kw, channels)
        image = grad.new_zeros(count, rows + 2 * ph, cols + 2 * pw, channels)
        for i in range(kh):
            for j in range(kw):
                image[
                    :, i * dh : i * dh + sh * height : sh, j * dw : j * dw + sw * width : sw
                ] += pieces[:, :, :, i, j]  # fmt: skip
        return image[:, ph : ph + rows, pw : pw + cols].permute(0, 3, 1, 2), None, None, None, None


_convolve: Callable[..., tuple[Tensor, Tensor]] = _Convolve.apply


def _columns(x: Tensor, geometry: Any) -> tuple[Tensor, int, int]:
    """Every patch of the images as a row, [C*B, L, kh*kw*channels], and the output's height and width."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = geometry
    if ph or pw:
        x = F.pad(x, (pw, pw, ph, ph))
    patches = x.unfold(2, dh * (kh - 1) + 1, sh).unfold(3, dw * (kw - 1) + 1, sw)[..., ::dh, ::dw]
    height, width = patches.shape[2:4]
    # One channel: (channel, kh, kw) and (kh, kw, channel) are the same numbers, but the first copies faster.
    order = (0, 2, 3, 1, 4, 5) if x.shape[1] == 1 else (0, 2, 3, 4, 5, 1)
    return patches.permute(order).reshape(x.shape[0], height * width, -1), height, width


class _ConvolveEach(torch.autograd.Function):
    """Each client's own convolution in turn; the kernels themselves get no gradient here."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernels: Tensor, bias: Tensor | None, geometry: Any, rows: list[int]
    ) -> Tensor:
        ctx.save_for_backward(kernels)
        ctx.geometry, ctx.shape, ctx.rows = geometry, x.shape, rows
        biases = [None] * len(kernels) if bias is None else bias
        parts = zip(x.split(rows), kernels, biases, strict=True)
        return torch.cat([F.conv2d(own, kernel, b, *geometry) for own, kernel, b in parts])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (kernels,) = ctx.saved_tensors
        parts = zip(grad.split(ctx.rows), kernels, strict=True)
        slopes = [conv2d_input((len(g), *ctx.shape[1:]), k, g, *ctx.geometry) for g, k in parts]
        return torch.cat(slopes), None, None, None, None


_convolve_each: Callable[..., Tensor] = _ConvolveEach.apply


class LargeConv2d(Stacked):
    """Keeps inputs and output gradients, call after call: [C, B, channels, h, w], [C, B, O, h', w'], ..."""

    packs = True

    def __init__(self, layer: nn.Conv2d):
        super().__init__(layer)
        self.geometry = (layer.stride, layer.padding, layer.dilation)
        self.size = layer.kernel_size

    def of(self, samples: int) -> list[int]:
        """How many of all samples are whose."""
        return [samples // self.clients] * self.clients if self.rows is None else self.rows

    def forward(self, x: Tensor) -> Tensor:
        own = self.of(len(x))
        out = _convolve_each(x, self.bound["weight"], self.bound.get("bias"), self.geometry, own)
        return self.record(x.detach(), out)

    def prepare(self, grads: list[Tensor]) -> tuple[Tensor, ...]:
        pairs = [(x, g) for (x, _), g in zip(self.calls, grads, strict=True)]
        return tuple(t.view(self.lead, -1, *t.shape[1:]) for pair in pairs for t in pair)

    def products(self, tape: tuple[Tensor, ...]) -> int:
        return sum(g[0, 0, 0].numel() for g in tape[1::2]) * self.bound["weight"][0].numel()

    def square_norms(self, tape: tuple[Tensor, ...]) -> Tensor:
        own = self.of(tape[0].shape[:2].numel())
        parts = zip(*(t.flatten(0, 1).split(own) for t in tape), strict=True)
        return torch.cat([self._square_norms(part) for part in parts]).view(tape[0].shape[:2])

    def _square_norms(self, tape: tuple[Tensor, ...]) -> Tensor:
        """Of one client, [B]: patches are gathered here only."""
        patches = [_columns(x, (self.size, *self.geometry))[0] for x in tape[::2]]  # [B, L, K]
        slopes = [g.flatten(2).transpose(1, 2) for g in tape[1::2]]  # [B, L, O]
        a, g = (t[0] if len(t) == 1 else torch.cat(t, 1) for t in (patches, slopes))
        result = gram_or_direct(a, g)[0]
        return result + g.sum(1).square().sum(1) if "bias" in self.names else result

    def add(
        self, tape: tuple[Tensor, ...], targets: dict[str, Tensor], coefficients: Tensor, alpha: float
    ) -> None:
        for x, g in zip(tape[::2], tape[1::2], strict=True):
            scaled, own = (
                (g * coefficients[:, :, None, None, None]).flatten(0, 1),
                self.of(coefficients.numel()),
            )
            parts = zip(targets["weight"], x.flatten(0, 1).split(own), scaled.split(own), strict=True)
            for target, inputs, slope in parts:
                target.add_(conv2d_weight(inputs, target.shape, slope, *self.geometry), alpha=alpha)
            if "bias" in self.names:
                targets["bias"].add_(self.sums(coefficients, g.sum((3, 4))), alpha=alpha)


class SmallConv2d(Matrix):
    def __init__(self, layer: nn.Conv2d):
        super().__init__(layer)
        self.geometry = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.bound["weight"]  # [C, O, channels, kh, kw]
        kernel = weight.permute(0, 1, 3, 4, 2).flatten(2)  # [C, O, K]
        out, columns = _convolve(x, kernel, self.bound.get("bias"), self.geometry, self.rows)
        return self.record(columns, out)

    def prepare(self, grads: list[Tensor]) -> list[Tensor]:
        return super().prepare([g.permute(0, 2, 3, 1).flatten(1, 2) for g in grads])

    def add_matrix(self, target: Tensor, g: Tensor, a: Tensor, alpha: float) -> None:
        if self.rows is None:
            total = torch.bmm(g.transpose(1, 2), a)  # [C, O, K]
        else:
            total = g.new_zeros(len(target), g.shape[2], a.shape[2])
            ragged.add_products(total, g[0], a[0], self.of(g.shape[1]), 1.0)
        self.add_sum(target, total, alpha)

    def add_sum(self, target: Tensor, total: Tensor, alpha: float) -> None:
        outputs, channels, kh, kw = target.shape[1:]
        target.add_(total.view(-1, outputs, kh, kw, channels).permute(0, 1, 4, 2, 3), alpha=alpha)


@rule(nn.Conv2d)
def stacked_conv2d(layer: nn.Conv2d) -> Stacked:
    if layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        raise NotImplementedError("grouped or string-padded convolutions have no stacked rule")
    return LargeConv2d(layer) if layer.weight.numel() >= _LARGE else SmallConv2d(layer)
