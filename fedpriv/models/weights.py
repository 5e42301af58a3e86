"""Pretrained weights: torchvision's download into its own cache, and one clear line where it fails."""

from typing import Any

from fedpriv.datasets.download import one_line
from fedpriv.errors import UserError


def pretrained_state(
    weights: Any, *, asked: str = "model.pretrained=true", otherwise: str = "use model.pretrained=false"
) -> dict[str, Any]:
    """The state dict of a torchvision weights entry, checked against the hash in its name."""
    try:
        state: dict[str, Any] = weights.get_state_dict(progress=True, check_hash=True)
        return state
    except Exception as problem:  # networks, proxies and damaged files raise nearly anything
        raise UserError(
            f"{asked}: cannot fetch {weights.url.rsplit('/', 1)[-1]} ({one_line(problem)}); put it into "
            f"the folder hub/checkpoints of TORCH_HOME or {otherwise}"
        ) from problem
