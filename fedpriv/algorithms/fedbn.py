"""FedBN (Li et al. 2021): norm layers stay at home, scale, shift and statistics; FedGN: group norm instead.

PrivateFL (section 6.1) combines both with its transform; batch norm cannot be clipped one sample at a time,
so under local DP the group norm takes its place.
"""

from typing import Literal

from torch import nn

from fedpriv.algorithms.fedavg import FedAvg
from fedpriv.config.limits import Momentum, Positive
from fedpriv.errors import UserError

_LAYERS: dict[str, tuple[type[nn.Module], ...]] = {
    "batch": (nn.BatchNorm1d, nn.BatchNorm2d),
    "group": (nn.GroupNorm,),
}


class FedBN(FedAvg):
    def __init__(
        self,
        *,
        norm: Literal["batch", "group"] = "batch",
        server_lr: Positive = 1.0,
        server_momentum: Momentum = 0.0,
    ):
        super().__init__(server_lr=server_lr, server_momentum=server_momentum)
        self.norm = norm

    def home(self, network: nn.Module) -> set[str]:
        norms = [(n, m) for n, m in network.named_modules() if isinstance(m, _LAYERS[self.norm])]
        if not norms:
            raise UserError(
                f"algorithm.norm={self.norm}: the model has no such layers to keep at home; set "
                f"model.norm={self.norm}"
            )
        return {f"{name}.{p}" for name, module in norms for p, _ in module.named_parameters()}
