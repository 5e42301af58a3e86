"""What has to be said where epsilons of several runs stand together: whom they protect, what is proved."""

import json
from collections.abc import Sequence
from typing import Any

from fedpriv.studies.reader import Result


def remarks(runs: Sequence[Result]) -> list[str]:
    """Of runs whose privacy.json is there: different units, and epsilons that are claimed and not proved."""
    units: dict[str, dict[str, None]] = {}
    claimed: dict[str, dict[str, None]] = {}
    for run in runs:
        if not run.private or not (told := _privacy(run)):
            continue
        variant = str(run.values["dp_variant"])
        units.setdefault(str(told.get("unit")), {})[variant] = None
        if not told.get("claim_holds", True):
            most = told.get("epsilon_provable_max")
            text = "none" if most is None else f"{most:.3g}" if most < 100 else f"{most:,.0f}"
            claimed.setdefault(variant, {})[text] = None
    found = []
    if len(units) > 1:
        whom = ", ".join(f"one {unit} ({', '.join(names)})" for unit, names in units.items())
        found.append(f"epsilon protects {whom}, which is not the same protection")
    for variant, proved in claimed.items():
        found.append(f"the epsilon of {variant} is claimed and not proved; provable: {', '.join(proved)}")
    return found


def _privacy(run: Result) -> dict[str, Any]:
    try:
        return dict(json.loads((run.folder / "privacy.json").read_text()))
    except (OSError, ValueError):  # of a run by hand, or not finished: nothing is known of it
        return {}
