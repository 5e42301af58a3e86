"""DP-SCAFFOLD (Noble et al. 2022): SCAFFOLD's option II on private gradients.

Everything is computed from gradients that DP-SGD has already clipped and noised, so under local DP the
variates are post-processing and cost nothing. Departure: noise and accounting are those of dp=ldp (add or
remove one sample, Poisson batches) instead of the paper's replace-one.
"""

from fedpriv.algorithms.scaffold import Scaffold
from fedpriv.config.limits import Momentum, Positive


class DPScaffold(Scaffold):
    def __init__(self, *, server_lr: Positive = 1.0, server_momentum: Momentum = 0.0):
        super().__init__(option="II", server_lr=server_lr, server_momentum=server_momentum)
