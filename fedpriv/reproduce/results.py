"""How much of the papers was reproduced: the section of results in outputs/README.md."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.reproduce.compare import VERDICTS, Answer, Comparison, Held
from fedpriv.reproduce.recipe import READING
from fedpriv.reproduce.reference import printed
from fedpriv.reproduce.table import counted

BEGIN = "<!-- results, written by `fedpriv report readme=outputs/README.md` -->"
END = "<!-- end of results -->"
_PAPERS = {"privatefl": "PrivateFL", "pldpfl": "PLDP-FL", "fedpd": "FedPD", "pfa": "PFA", "ldpfl": "LDP-FL"}


def write(comparisons: Sequence[Comparison], path: Path) -> None:
    """Replace the section between the two marks."""
    try:
        text = path.read_text() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"readme={path}: cannot be read as a text ({type(problem).__name__})") from problem
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{path}: needs the lines {BEGIN} and {END} once each, between which results go")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    write_atomically(path, f"{before}{BEGIN}\n{section(comparisons)}{END}{after}".encode())


def section(comparisons: Sequence[Comparison]) -> str:
    run = [c for c in comparisons if c.runs]
    lines = [_counts(run), "", *_papers(run), "", *_table(run), ""]
    lines += [
        "Claims that do not hold, in the view that the paper reports and by the first reading:",
        "",
    ]
    lines += _failing(run) or ["- none so far"]
    noted = [c for c in run if c.recipe.notes]
    lines += ["", "What the numbers say, table by table:", ""] if noted else []
    lines += [f"- {_named(c)}: {c.recipe.notes}" for c in noted]
    return "\n".join([*lines, ""])


def _named(comparison: Comparison) -> str:
    recipe = comparison.recipe
    return f"{_PAPERS.get(recipe.paper, recipe.paper)}, {recipe.artifact}"


def _papers(run: Sequence[Comparison]) -> list[str]:
    """A row a paper: printed numbers by verdict, claims, hours."""
    told = "within | better | worse | unclear | diverged"
    lines = [f"| paper | printed, run | {told} | claims: hold, tie, fail | hours |"]
    lines.append("|" + " --- |" * 9)
    for paper in dict.fromkeys(c.recipe.paper for c in run):
        own = [c for c in run if c.recipe.paper == paper]
        answers = {a.printed.line: a for c in own for a in c.answers() if a.ours is not None}
        verdicts = Counter(a.verdict for a in answers.values())
        held = Counter(_whole(h) for c in own for h in c.held_in_own_view())
        seconds = {row.identity: row.measured["seconds"] or 0.0 for c in own for row in c.runs}
        cells = (
            _PAPERS.get(paper, paper),
            verdicts.total(),
            *(verdicts[v] for v in VERDICTS[:-1]),
            ", ".join(str(held[v]) for v in ("holds", "ties", "fails")),
            f"{sum(seconds.values()) / 3600:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _whole(held: Held) -> str:
    """A claim as one: it fails where it fails at all."""
    return "fails" if held.verdict == "mixed" else held.verdict


def _answered(run: Sequence[Comparison], source: str) -> list[Answer]:
    """One answer for every line of reference.csv, though two recipes may give it."""
    found = [a for c in run for a in c.answers() if a.ours is not None and a.printed.source == source]
    return list({a.printed.line: a for a in found}.values())


def _counts(run: Sequence[Comparison]) -> str:
    told = []
    for source, what in (("table", "printed in the papers' tables"), ("text", "quoted in their texts")):
        answers = _answered(run, source)
        every = sum(p.source == source for p in printed())
        within = sum(a.verdict == "within" for a in answers)
        told.append(
            f"{len(answers)} of the {every} numbers {what} have runs of ours, {within} are within 0.03"
        )
    runs = len({row.identity for c in run for row in c.runs})
    return f"{runs:,} runs on two cores. {'; '.join(told)} (5 % for what is no accuracy)."


def _table(run: Sequence[Comparison]) -> list[str]:
    """A row for each reading of each artifact that was run, ours first."""
    lines = [
        "| artifact | reading | runs | seeds | printed | within | better | worse | unclear | diverged | "
        "claims: hold, tie, fail |"
    ]
    lines.append("|" + " --- |" * 11)
    for c in run:
        for reading in c.recipe.readings or [""]:
            own = [row for row in c.runs if row.cell.get(READING, "") == reading]
            if not own:
                continue
            found = c.answers(reading) if reading else c.answers()
            verdicts = Counter(a.verdict for a in found if a.ours is not None)
            held = c.held_in_own_view(reading)
            place = list(c.recipe.axes).index(READING) if reading else None
            cells = [rows for key, rows in c.cells.items() if place is None or key[place] == reading]
            seeds = sorted({len(rows) for rows in cells})
            counts = [sum(getattr(h, name) for h in held) for name in ("holds", "ties", "fails")]
            texts = (
                c.recipe.name,
                reading,
                len(own),
                f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
                verdicts.total(),
                *(verdicts[v] for v in VERDICTS[:-1]),
                ", ".join(map(str, counts)) if held else "",
            )
            lines.append(f"| {' | '.join(map(str, texts))} |")
    return lines


def _failing(run: Sequence[Comparison]) -> list[str]:
    return [
        f"- {_named(c)}: {h.claim.text}: {'fails' if h.verdict == 'fails' else 'not always'} ({counted(h)})"
        for c in run
        for h in c.held_in_own_view()
        if h.fails
    ]
