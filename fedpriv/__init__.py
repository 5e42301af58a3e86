"""fedpriv: compose, run and honestly account private federated learning experiments."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.api import Outcome, UserError, build, compose, load, results, run, sweep

__version__ = "0.1.0"
__all__ = ["Outcome", "UserError", "__version__", "build", "compose", "load", "results", "run", "sweep"]


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: importing fedpriv imports neither Hydra nor torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from fedpriv import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
