"""What the parts of a round have in common: mechanism, aggregator, algorithm and upload."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedpriv.parts.declarations import ALONE, Wiring
from fedpriv.rounds.setting import Setting

Method = TypeVar("Method", bound=Callable[..., Any])


def by_client(method: Method) -> Method:
    """Marks a method that makes each client's row of that client's own: rows may come to it in parts.

    A method that is overridden has no mark, unless it is given one again.
    """
    method.by_client = True  # type: ignore[attr-defined]
    return method


class Part:
    """A part says what it is in `facts` (declarations.py), learns the run in `setup` and keeps its state."""

    wiring: Wiring = ALONE
    device_needs: tuple[str, ...] = ()  # what not every device has: "float64", "eigh"
    remarks: tuple[str, ...] = ()  # warnings for the user, known after `setup`

    def setup(self, setting: Setting, wiring: Wiring = ALONE) -> Any:
        """Learn the facts of the run and what the other parts do. The only hook that stores them."""
        self.setting, self.wiring = setting, wiring

    def apart(self, method: str) -> bool:
        """Whether a method may be given some clients at a time."""
        return bool(getattr(getattr(self, method), "by_client", False))

    def state(self) -> dict[str, Any]:
        """What must survive a stop, besides options and what `setup` makes."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state`, which may lie on another device."""

    def diagnostics(self) -> dict[str, float]:
        """Remarkable numbers of the round just done, for the record; the same names every round."""
        return {}
