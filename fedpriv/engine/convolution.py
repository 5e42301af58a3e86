"""The convolution for C clients: one batched product over patches, channels last."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine.rules import Matrix, product, rule


class _Convolve(torch.autograd.Function):
    """A convolution by C kernels as one batched product; the kernels themselves get no gradient here.

    Columns and outputs keep the channel last, which makes both the gathering of patches and the scattering
    of their gradients copies of contiguous runs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Any) -> Any:
        clients = kernel.shape[0]
        columns, height, width = _columns(x, geometry)  # [C*B, L, K]
        flat = columns.reshape(clients, -1, columns.shape[-1])
        out = product(flat, kernel, bias)  # [C, B*L, O]
        ctx.save_for_backward(kernel)
        ctx.geometry, ctx.shape, ctx.grid = geometry, x.shape, (height, width)
        ctx.mark_non_differentiable(columns)
        return out.view(x.shape[0], height, width, -1).permute(0, 3, 1, 2), columns

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:  # type: ignore[override]
        (kernel,) = ctx.saved_tensors
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = ctx.geometry
        count, channels, rows, cols = ctx.shape
        height, width = ctx.grid
        flat = grad.permute(0, 2, 3, 1).reshape(kernel.shape[0], -1, kernel.shape[1])
        pieces = torch.bmm(flat, kernel).view(count, height, width, kh, kw, channels)
        image = grad.new_zeros(count, rows + 2 * ph, cols + 2 * pw, channels)
        for i in range(kh):
            for j in range(kw):
                image[
                    :, i * dh : i * dh + sh * height : sh, j * dw : j * dw + sw * width : sw
                ] += pieces[:, :, :, i, j]  # fmt: skip
        return image[:, ph : ph + rows, pw : pw + cols].permute(0, 3, 1, 2), None, None, None


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


@rule(nn.Conv2d)
class StackedConv2d(Matrix):
    def __init__(self, layer: nn.Conv2d):
        super().__init__(layer)
        if layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros":
            raise NotImplementedError("grouped or string-padded convolutions have no stacked rule")
        self.geometry = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.bound["weight"]  # [C, O, channels, kh, kw]
        kernel = weight.permute(0, 1, 3, 4, 2).flatten(2)  # [C, O, K]
        out, columns = _Convolve.apply(x, kernel, self.bound.get("bias"), self.geometry)
        return self.record(columns, out)

    def prepare(self, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
        return super().prepare([g.permute(0, 2, 3, 1).flatten(1, 2) for g in grads])

    def add_matrix(self, target: Tensor, g: Tensor, a: Tensor, alpha: float) -> None:
        total = torch.bmm(g.transpose(1, 2), a)  # [C, O, K]
        outputs, channels, kh, kw = target.shape[1:]
        target.add_(total.view(-1, outputs, kh, kw, channels).permute(0, 1, 4, 2, 3), alpha=alpha)
