"""`fedpriv report`: everything that was reproduced in one self-contained HTML file."""

import base64
import csv
import datetime
import statistics
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedpriv import __version__
from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.reproduce import recipe as recipes
from fedpriv.reproduce import results, rows
from fedpriv.reproduce.compare import Comparison, Key
from fedpriv.reproduce.draw import png
from fedpriv.reproduce.reference import printed
from fedpriv.reproduce.rows import Row
from fedpriv.reproduce.table import counted, layout, number, parts, quoted, told

AUDITS = "audits.csv"  # beside the reproduced rows
REPORT = rows.FOLDER / "report.html"


def main(arguments: Sequence[str]) -> int:
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if {"-h", "--help"} & set(arguments):
        print(f"usage: fedpriv report [out=FILE.html] [readme=FILE.md]      (default out={REPORT})")
        print("       fedpriv report FOLDER ... [out=FILE.html]           your own runs instead\n")
        print("One page of everything in outputs/reproduced. `readme` writes a section of results into a")
        print(f"file that has the lines {results.BEGIN} and {results.END}.")
        return 0
    if unknown := sorted(given.keys() - {"out", "readme"}):
        raise UserError(
            f"{unknown[0]}: no folder with runs; name one, or none for everything that was reproduced"
        )
    out = Path(given.get("out") or REPORT)
    comparisons = [Comparison(recipes.load(name)) for name in recipes.names()]
    text = render(comparisons, rows.FOLDER)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.encode())
    print(f"written   {out}")
    if "readme" in given:
        results.write(comparisons, Path(given["readme"]))
        print(f"written   {given['readme']}")
    return 0


def render(comparisons: Sequence[Comparison], folder: Path) -> str:
    run = [c for c in comparisons if c.runs]
    if not run:
        raise UserError(f"{folder}: holds no results; `fedpriv reproduce` makes them")
    template = files("fedpriv.reproduce").joinpath("report.html.j2").read_text()
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(template)
    papers = list(dict.fromkeys(c.recipe.paper for c in run))
    every = [r for c in run for r in c.runs]
    return page.render(
        version=__version__,
        date=datetime.date.today().isoformat(),
        totals=_totals(run, len(comparisons)),
        papers=[{"name": p, "recipes": [_recipe(c) for c in run if c.recipe.paper == p]} for p in papers],
        privacy=[line for c in run for line in _privacy(c)],
        audits=audits(folder),
        cost=[_cost(c) for c in run],
        revisions=sorted({r.about["git_revision"][:8] for r in every if r.about["git_revision"]}),
        torch=sorted({r.about["torch"] for r in every if r.about["torch"]}),
        missing=[{"name": c.recipe.name, "title": c.recipe.title} for c in comparisons if not c.runs],
        reasons=sorted({f"{c.recipe.name}: {why}" for c in comparisons for _, why in c.recipe.left_out}),
    )


def _totals(run: Sequence[Comparison], every: int) -> dict[str, int]:
    answers = [a for c in run for a in c.answers() if a.ours is not None]
    held = [h for c in run for h in c.held_in_own_view()]
    return {
        "runs": len({r.identity for c in run for r in c.runs}),
        "recipes": len(run),
        "all_recipes": every,
        "printed": len(printed()),
        "answered": len(answers),
        "within": sum(a.verdict == "within" for a in answers),
        "claims": len(held),
        "holds": sum(h.verdict == "holds" for h in held),
    }


def _recipe(comparison: Comparison) -> dict[str, Any]:
    recipe = comparison.recipe
    scales = sorted({r.scale for r in comparison.runs})
    return {
        "name": recipe.name,
        "title": recipe.title,
        "notes": recipe.notes,
        "runs": len(comparison.runs),
        "cuts": [f"Scale {s}: {recipe.cut(s)}" for s in recipes.SCALES if s in scales and recipe.cut(s)],
        "parts": [_typeset(comparison, *part) for part in parts(comparison)],
        "picture": _picture(comparison),
        "claims": _claims(comparison),
        "quoted": quoted(comparison),
        "left_out": list(dict.fromkeys(why for _, why in recipe.left_out)),
    }


def _claims(comparison: Comparison) -> list[dict[str, str]]:
    """A line for each claim, or one for each view of accuracy where the two do not agree."""
    views: dict[tuple[str, str, str, str], list[str]] = {}
    for h in comparison.held():
        if h.verdict != "not run":
            views.setdefault((h.claim.text, h.reading, h.verdict, counted(h)), []).append(h.view)
    return [
        {
            "text": text + (f" ({reading})" if reading else ""),
            "verdict": verdict,
            "view": "both views" if len(seen) > 1 else f"the {seen[0]} view",
            "counts": counts,
        }
        for (text, reading, verdict, counts), seen in views.items()
    ]


def _typeset(comparison: Comparison, heading: str, metric: str, name: str) -> dict[str, Any]:
    """A table as the page wants it: texts, and a verdict for every cell."""
    header, lines = layout(comparison, name)
    rows_, empty = [], 0
    for setting, keys in lines:
        if not any(key in comparison.cells for key in keys):
            empty += 1
            continue
        cells = [{"ours": text, "paper": "", "verdict": ""} for text in setting]
        rows_.append(cells + [_cell(comparison, key, metric, name) for key in keys])
    left = len(comparison.recipe.table["rows"])
    return {
        "heading": f"{heading}: ours (paper)",
        "header": header,
        "rows": rows_,
        "left": left,
        "empty": empty,
    }


def _cell(comparison: Comparison, key: Key | None, metric: str, name: str) -> dict[str, str]:
    if key is None:
        return {"ours": "", "paper": "", "verdict": ""}
    ours, theirs = comparison.of_cell(key, metric, name)
    verdict = comparison.answer(theirs).verdict.replace(" ", "-") if theirs else ""
    text = "-"
    if ours is not None:
        text = told(name, ours.mean) + (f" ± {number(ours.std)}" if ours.std is not None else "")
    return {"ours": text, "paper": number(theirs.value) if theirs else "", "verdict": verdict}


def _picture(comparison: Comparison) -> str:
    return base64.b64encode(png(comparison) or b"").decode()


def _privacy(comparison: Comparison) -> list[dict[str, Any]]:
    """Claimed and provable epsilon by method, or whatever axis tells the methods apart."""
    axis = "method" if "method" in comparison.recipe.axes else next(iter(comparison.recipe.axes))
    groups: dict[str, list[Row]] = {}
    for run in comparison.runs:
        dp = run.cell.get("dp", "")
        groups.setdefault(f"{run.cell[axis]}{f', {dp}' if dp and axis != 'dp' else ''}", []).append(run)
    found = []
    for method, members in groups.items():
        claimed = [r.measured["epsilon_spent"] for r in members]
        provable = [r.measured["epsilon_provable"] for r in members]
        pairs = [(c, p) for c, p in zip(claimed, provable, strict=True) if c is not None]
        found.append(
            {
                "recipe": comparison.recipe.name,
                "method": method,
                "claimed": _span(claimed, "no privacy"),
                "provable": _span(provable, "none"),
                "broken": any(p is None or p > c * 1.001 for c, p in pairs),
                "runs": len(members),
            }
        )
    return found


def audits(folder: Path) -> list[dict[str, str]]:
    """What `fedpriv audit` measured of the methods (scripts/audit_sweep.py); no file: no section."""
    path = folder.parent / AUDITS
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [{**row, "broken": _broken(row), **_short(row)} for row in csv.DictReader(file)]


def _short(row: dict[str, str]) -> dict[str, str]:
    numbers = ("claimed", "provable", "measured", "provable_there", "largest_move")
    return {key: f"{float(row[key]):.3g}" if row[key] else "none" for key in numbers}


def _broken(row: dict[str, str]) -> str:
    """A bound that breaks the promise, or only the method's claim."""
    if row["kind"] != "bound" or not row["measured"]:
        return ""
    measured = float(row["measured"])
    if row["provable_there"] and measured > float(row["provable_there"]):
        return "promise"
    return (
        "claim" if row["audit"] == "one-run" and row["claimed"] and measured > float(row["claimed"]) else ""
    )


def _span(values: Sequence[float | None], nothing: str) -> str:
    numbers = [v for v in values if v is not None]
    if not numbers:
        return nothing
    low, high = min(numbers), max(numbers)
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


def _cost(comparison: Comparison) -> dict[str, Any]:
    seconds = [r.measured["seconds"] or 0.0 for r in comparison.runs]
    memory = [r.measured["peak_memory_mb"] or 0.0 for r in comparison.runs]
    return {
        "recipe": comparison.recipe.name,
        "runs": len(seconds),
        "median": f"{statistics.median(seconds):.1f}",
        "total": f"{sum(seconds):,.0f}",
        "memory": f"{max(memory):,.0f}",
    }
