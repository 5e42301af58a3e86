"""How much of its gradients a client's way adds up: the L1 norm of FedNova's vector a_i (Wang et al. 2020).

Local SGD with momentum rho moves by -lr sum_j a_j g_j with a_j = (1 - rho^(tau - j)) / (1 - rho), so

||a||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho),

which is tau, the number of steps, without momentum. Weight decay is part of the gradient and changes nothing.
"""

import numpy as np


def accumulated(steps: np.ndarray, momentum: float) -> np.ndarray:
    """||a_i||_1 of clients that take `steps` local steps, momentum starting at zero every round."""
    tau = steps.astype(np.float64)
    if not momentum:
        return tau
    return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
