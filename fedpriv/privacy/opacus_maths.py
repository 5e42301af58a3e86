"""Opacus's maths alone: imported by its name it brings all of Opacus, which costs more than torch.

Its folder of accountants is made a package of ours, in which two modules that need the rest of Opacus are
replaced: what accountants have in common, and the Renyi accountant, which our grid does without.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = f"{__name__}.accountants"
# The orders of Opacus's accountants.
ALPHAS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))


class _Common:
    """What an accountant of Opacus begins with."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []


def _begin() -> None:
    package = find_spec("opacus")
    assert package is not None and package.submodule_search_locations
    for name, content in (
        ("", {"__path__": [str(Path(package.submodule_search_locations[0], "accountants"))]}),
        (".accountant", {"IAccountant": _Common}),
        (".rdp", {"RDPAccountant": None}),
    ):
        module = sys.modules[_NAME + name] = ModuleType(_NAME + name)
        vars(module).update(content)


_begin()
_rdp: Any = import_module(f"{_NAME}.analysis.rdp")
compute_rdp, get_privacy_spent = _rdp.compute_rdp, _rdp.get_privacy_spent


def prv() -> tuple[Any, Any]:
    """The PRV accountant, whose grid has to be made by a method of one's own, and the class of grids."""
    return import_module(f"{_NAME}.prv").PRVAccountant, import_module(f"{_NAME}.analysis.prv").Domain
