"""`audit membership`: who trained the finished model? Members have lower loss (Yeom et al. 2018).

The threshold for one false alarm in a hundred comes from one half of the held-out samples; the other half and
the members are judged by it. A number a person understands, and no bound on epsilon: members were not drawn
by a coin.
"""

from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from fedpriv.audit.finding import Result
from fedpriv.engine.data import ClientData
from fedpriv.rounds.trainer import Trainer

FALSE_ALARMS = 0.01
LEARNT = 0.1  # of the way from chance to all right
_POINTS = 200  # of the curve that are kept


def losses(trainer: Trainer, data: ClientData) -> np.ndarray:
    """Every client's network on its own samples of one side, [N]."""
    device = trainer.theta.device
    found = []
    for client in torch.arange(trainer.setting.clients, device=device).split(16):
        rows = torch.cat(
            [trainer.algorithm.start(trainer.theta, client, trainer.store), trainer.store["home"][client]], 1
        )
        loss, _ = trainer.engine.predict(rows, trainer.store["statistics"][client], data.owned[client], data)
        inside: Tensor = torch.arange(data.owned.shape[1])[None, :] < data.size[client.cpu()][:, None]
        found.append(loss.cpu()[inside].double().numpy())
    whole: np.ndarray = np.nan_to_num(np.concatenate(found), nan=1e30, posinf=1e30)
    return whole


def audit(trainer: Trainer, accuracy: float, classes: int) -> Result:
    """Of a trainer whose rounds are done."""
    if accuracy < 1 / classes + LEARNT * (1 - 1 / classes):
        says = (
            f"the model did not learn (accuracy {accuracy:.3f}, chance {1 / classes:.3f}): its losses tell "
            "nothing of members; train longer or with a larger epsilon"
        )
        return Result("membership", says)
    inside, outside = losses(trainer, trainer.train), losses(trainer, trainer.test)
    scores = -np.concatenate([inside, outside])
    member = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    area = float(roc_auc_score(member, scores))
    false, true, _ = roc_curve(member, scores)
    order = np.random.default_rng(0).permutation(len(outside))
    known, judged = outside[order[::2]], outside[order[1::2]]
    threshold = float(np.quantile(-known, 1 - FALSE_ALARMS))
    hits, alarms = float((-inside > threshold).mean()), float((-judged > threshold).mean())
    says = (
        f"by loss: AUC {area:.3f} (guessing: 0.5), {hits:.1%} of {len(inside):,} members found at a "
        f"threshold for {FALSE_ALARMS:.0%} false alarms ({alarms:.1%} of {len(judged):,} held-out samples)"
    )
    thin = np.unique(np.linspace(0, len(false) - 1, min(_POINTS, len(false))).astype(int))
    details: dict[str, Any] = {
        "auc": area,
        "tpr_at_1_percent_fpr": hits,
        "fpr_measured": alarms,
        "accuracy": accuracy,
        "roc": {"false": false[thin].tolist(), "true": true[thin].tolist()},
    }
    return Result("membership", says, details=details)
