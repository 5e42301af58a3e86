"""Group and batch normalisation for C clients: a scale and a shift per channel and client."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpriv.engine.rules import Stacked, rule


class _Affine(Stacked):
    """x_hat * weight + bias with one number per channel; subclasses make x_hat."""

    def scale(self, hat: Tensor) -> Tensor:
        weight, bias = self.each(self.bound["weight"]), self.each(self.bound["bias"])  # [C, 1, channels]
        shape = (*weight.shape, *[1] * (hat.dim() - 2))
        per_client = hat.view(self.lead, -1, *hat.shape[1:])
        out = per_client * weight.view(shape) + bias.view(shape)
        return self.record(hat.detach(), out.view(hat.shape))

    def prepare(self, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
        weight = bias = torch.zeros(())
        for (hat, _), g in zip(self.calls, grads, strict=True):
            shape = (self.lead, -1, g.shape[1])
            weight = weight + (hat * g).reshape(*g.shape[:2], -1).sum(2).view(shape)
            bias = bias + g.reshape(*g.shape[:2], -1).sum(2).view(shape)
        return weight, bias  # [C, B, channels]

    def square_norms(self, tape: tuple[Tensor, Tensor]) -> Tensor:
        return tape[0].square().sum(2) + tape[1].square().sum(2)

    def add(
        self, tape: tuple[Tensor, Tensor], targets: dict[str, Tensor], coefficients: Tensor, alpha: float
    ) -> None:
        for name, per_sample in zip(("weight", "bias"), tape, strict=True):
            targets[name].add_(self.sums(coefficients, per_sample), alpha=alpha)


@rule(nn.GroupNorm)
class StackedGroupNorm(_Affine):
    packs = True

    def __init__(self, layer: nn.GroupNorm):
        super().__init__(layer)
        if not layer.affine:
            raise NotImplementedError("a norm without weights needs no rule")
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(F.group_norm(x.contiguous(), self.groups, eps=self.eps))


@rule(nn.BatchNorm1d, nn.BatchNorm2d)
class StackedBatchNorm(_Affine):
    """Each client normalises over its own real samples; its running statistics never leave it."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d):
        super().__init__(layer)
        if not (layer.affine and layer.track_running_stats and layer.momentum is not None):
            raise NotImplementedError("only affine batch norm with running averages has a stacked rule")
        self.eps, self.momentum = layer.eps, layer.momentum

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.bound["running_mean"], self.bound["running_var"]  # [C, channels]
        clients, channels = mean.shape
        per_client = x.reshape(clients, len(x) // clients, channels, -1)  # [C, B, channels, L]
        if self.training:
            assert self.mask is not None
            mask = self.mask[:, :, None, None].to(x.dtype)
            count = (self.mask.sum(1) * per_client.shape[3])[:, None].to(x.dtype)  # [C, 1]
            safe = count.clamp(min=1)
            batch_mean = (per_client * mask).sum((1, 3)) / safe
            centred = (per_client - batch_mean[:, None, :, None]) * mask
            batch_var = centred.square().sum((1, 3)) / safe
            with torch.no_grad():
                # A client without a sample in this step keeps its statistics; variance as torch has it.
                rate = self.momentum * (count > 0)
                mean.add_(rate * (batch_mean - mean))
                var.add_(rate * (batch_var * count / (count - 1).clamp(min=1) - var))
            mean, var = batch_mean, batch_var
        hat = (per_client - mean[:, None, :, None]) * (var + self.eps).rsqrt()[:, None, :, None]
        return self.scale(hat.reshape(x.shape))
