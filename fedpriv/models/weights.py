"""Pretrained weights: torchvision's download into its own cache, and one clear line where it fails."""

from typing import Any
from urllib.error import URLError

from fedpriv.errors import UserError


def pretrained_state(weights: Any) -> dict[str, Any]:
    """The state dict of a torchvision weights entry, checked against the hash in its name."""
    try:
        return weights.get_state_dict(progress=True, check_hash=True)
    except (URLError, OSError) as problem:
        raise UserError(
            f"model.pretrained=true: cannot fetch {weights.url.rsplit('/', 1)[-1]} ({problem}); put it into "
            "the folder hub/checkpoints of TORCH_HOME or use model.pretrained=false"
        ) from None
