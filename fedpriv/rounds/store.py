"""Per-client tensors, one owner each: personal layers, norm statistics, control variates."""

from torch import Tensor


class ClientStore:
    """Named [K, ...] tensors. An owner claims a name once and is the only one to write it."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def claim(self, owner: str, values: Tensor) -> None:
        if owner in self._tensors:
            raise ValueError(f"{owner} has an owner already")
        self._tensors[owner] = values

    def __getitem__(self, owner: str) -> Tensor:
        return self._tensors[owner]

    def state(self) -> dict[str, Tensor]:
        return dict(self._tensors)

    def load(self, state: dict[str, Tensor]) -> None:
        for owner, values in state.items():
            self._tensors[owner].copy_(values)
