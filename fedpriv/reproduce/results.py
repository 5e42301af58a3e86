"""How much of the papers was reproduced: the section of results in outputs/README.md."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.reproduce.compare import Answer, Comparison
from fedpriv.reproduce.reference import printed

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
    lines = [_counts(run), "", *_table(run), ""]
    lines += ["Claims that do not hold, in the view of accuracy that the paper reports:", ""]
    lines += _failing(run) or ["- none so far"]
    return "\n".join([*lines, ""])


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
    lines = ["| artifact | runs | seeds | printed | within | better | worse | claims: hold, tie, fail |"]
    lines.append("|" + " --- |" * 8)
    for c in run:
        verdicts = Counter(a.verdict for a in c.answers() if a.ours is not None)
        held = c.held_in_own_view()
        seeds = sorted({len(rows) for rows in c.cells.values()})
        counts = [sum(getattr(h, name) for h in held) for name in ("holds", "ties", "fails")]
        cells = (
            c.recipe.name,
            len(c.runs),
            f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
            verdicts.total(),
            verdicts["within"],
            verdicts["better"],
            verdicts["worse"],
            ", ".join(map(str, counts)) if held else "",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _failing(run: Sequence[Comparison]) -> list[str]:
    return [
        f"- {_PAPERS.get(c.recipe.paper, c.recipe.paper)}, {c.recipe.artifact}: {h.claim.text}: "
        f"{'fails' if h.verdict == 'fails' else 'not always'} ({h.holds} hold, {h.ties} tie, {h.fails} fail)"
        for c in run
        for h in c.held_in_own_view()
        if h.fails
    ]
