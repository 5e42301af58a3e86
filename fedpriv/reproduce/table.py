"""`fedpriv table`: a published table in its own layout, ours beside the paper's, on screen and in files."""

import csv
import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table as Screen

from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.reproduce import recipe as recipes
from fedpriv.reproduce import rows
from fedpriv.reproduce.compare import VERDICTS, Comparison, Held, Key
from fedpriv.reproduce.draw import png
from fedpriv.reproduce.plan import still
from fedpriv.reproduce.rules import RULES

TABLES, FIGURES = "tables", "figures"
_PLAIN = 180  # columns where there is no terminal to measure


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        from fedpriv.studies.table import HELP

        print(f"{HELP}\nrecipes: " + ", ".join(recipes.names()))
        return 0 if {"-h", "--help"} & set(arguments) else 2
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN)
    chosen = recipes.chosen(arguments[0])
    folder = rows.folder_of(arguments[0])
    finished = {r: rows.read(r, folder) for r in chosen}
    if recipes.own(arguments[0]):  # which is edited between two runs; those of the papers are under test
        for r, runs in finished.items():
            finished[r] = still(r, runs)
            if gone := len(runs) - len(finished[r]):
                told = "of settings or code that it does not have any more, and are left out"
                console.print(f"{r.name}: {gone} rows are {told}", soft_wrap=True)
    shown = [Comparison(r, folder, runs) for r, runs in finished.items() if runs]
    if not shown:
        raise UserError(
            f"{arguments[0]}: no finished run of it; `fedpriv reproduce {arguments[0]}` makes them"
        )
    for comparison in shown:
        show(comparison, console)
        for path in [*write(comparison, folder / TABLES), *picture(comparison, folder / FIGURES)]:
            console.print(f"written   {path}", soft_wrap=True)
    return 0


# -- one table as rows of texts


def layout(comparison: Comparison, name: str) -> tuple[list[str], list[tuple[Key, list[Key | None]]]]:
    """The paper's layout: header, and of every row its setting and the cells in it; None: no such cell."""
    wanted, axes, present = comparison.recipe.table, list(comparison.recipe.axes), comparison.keys()
    settings = {
        side: list(dict.fromkeys(tuple(key[axes.index(a)] for a in wanted[side]) for key in present))
        for side in ("rows", "columns")
    }
    named = [
        ", ".join(f"{a} {v}" for a, v in zip(wanted["columns"], column, strict=True)) or name
        for column in settings["columns"]
    ]
    lines: list[tuple[Key, list[Key | None]]] = []
    for line in settings["rows"]:
        keys: list[Key | None] = []
        for column in settings["columns"]:
            facts = dict(zip([*wanted["rows"], *wanted["columns"]], [*line, *column], strict=True))
            key = tuple(facts[axis] for axis in axes)
            keys.append(key if key in present else None)
        lines.append((line, keys))
    return [*wanted["rows"], *named], lines


def grid(comparison: Comparison, metric: str, name: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of texts, `ours (paper)` in every cell."""
    header, lines = layout(comparison, name)
    return header, [
        [*setting, *("" if key is None else _cell(comparison, key, metric, name) for key in keys)]
        for setting, keys in lines
    ]


def _cell(comparison: Comparison, key: Key, metric: str, name: str) -> str:
    ours, theirs = comparison.of_cell(key, metric, name)
    printed = f" ({number(theirs.value)})" if theirs else ""
    if ours is None:
        return f"-{printed}"
    spread = f"±{number(ours.std)}" if ours.std is not None and math.isfinite(ours.std) else ""
    return f"{told(name, ours.mean)}{spread}{printed}"


def number(value: float) -> str:
    """Three decimals, without the zero that every accuracy begins with; large ones in full."""
    if not math.isfinite(value):
        return "never"  # the target was not reached
    if abs(value) >= 10:
        return f"{value:,.4g}"
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3g}"


def told(name: str, value: float) -> str:
    """A number of ours in a table: a run may have diverged, and a target may never be reached."""
    if math.isnan(value):
        return "diverged"
    return "never" if name == "speedup" and value == 0 else number(value)


def beside(comparison: Comparison) -> str:
    """What stands in a cell; a recipe of one's own has no paper."""
    return ": ours (paper)" if comparison.printed else ""


def parts(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(heading, printed metric, our number): each metric, and accuracies in both views."""
    found, printed = [], bool(comparison.printed)
    views = comparison.views()
    for metric, name in comparison.recipe.values.items():
        if name in RULES and not _in_cells(comparison, metric):
            continue
        if metric != "accuracy":
            found.append((metric, metric, name))
            continue
        for i, (view, own) in enumerate(views.items()):
            found.append(
                (
                    f"accuracy, {view}{' (the paper reports this view)' if i == 0 and printed else ''}",
                    metric if i == 0 else "",
                    own,
                )
            )
    return found


def _in_cells(comparison: Comparison, metric: str) -> bool:
    """Whether the paper prints this metric in the table itself, and not only quotes it."""
    own = comparison.recipe.artifact
    numbers = [p for p in comparison.printed if p.metric == metric and p.artifact == own]
    return any(not p.fact("stat") and p.source == "table" for p in numbers)


# -- where it goes


def show(comparison: Comparison, console: Console) -> None:
    recipe = comparison.recipe
    console.rule(f"{recipe.name}: {recipe.title}", align="left")
    for heading, metric, name in parts(comparison):
        header, lines = grid(comparison, metric, name)
        screen = Screen(title=f"{heading}{beside(comparison)}", title_justify="left")
        for text in header:
            side: Literal["left", "right"] = "left" if text in recipe.table["rows"] else "right"
            screen.add_column(text, justify=side, overflow="fold")
        for line in lines:
            screen.add_row(*line)
        console.print(screen)
    for text in remarks(comparison):
        console.print(text, soft_wrap=True)


def remarks(comparison: Comparison) -> list[str]:
    """Verdicts, claims, numbers quoted in the text and what is left out, a line each."""
    recipe, answers = comparison.recipe, comparison.answers()
    texts = [f"notes     {recipe.notes}"] if recipe.notes else []
    for reading in recipe.readings or [""]:
        if not answers:
            break
        found = comparison.answers(reading) if reading else answers
        counts = {v: sum(a.verdict == v for a in found) for v in VERDICTS}
        told = ", ".join(f"{n} {v}" for v, n in counts.items() if n)
        close = "within: 0.03 of an accuracy, 5 % of others"
        by = f", reading {reading}" if reading else ""
        texts.append(f"verdict   {len(answers)} printed numbers{by}: {told} ({close})")
    texts += [f"quoted    {text}" for text in quoted(comparison)]
    for h in comparison.held():
        if h.reading and h.reading != recipe.readings[0] and h.verdict == "not run":
            continue
        seen = f" in the {h.view} view" if h.claim.metric == "accuracy" else ""
        by = f", reading {h.reading}" if h.reading else ""
        texts.append(f"claim     {h.claim.text}: {h.verdict}{seen}{by} ({counted(h)})")
    scales = sorted({run.scale for run in comparison.runs})
    seeds = sorted({len(r) for r in comparison.cells.values()})
    told = f"scale {', '.join(scales)}, seeds a cell {', '.join(map(str, seeds))}"
    texts.append(f"runs      {len(comparison.runs)}, {told}")
    for why in dict.fromkeys(why for _, why in recipe.left_out):
        texts.append(f"left out  {why}")
    return texts


def counted(held: Held) -> str:
    """How often a claim holds, and on how many seeds that stands."""
    seeds = f", {held.seeds} seed{'s' if held.seeds > 1 else ''}" if held.seeds else ""
    missing = f"; no number of {', '.join(held.missing)}" if held.missing else ""
    return f"{held.holds} hold, {held.ties} tie, {held.fails} fail{seeds}{missing}"


def quoted(comparison: Comparison) -> list[str]:
    """The numbers that stand in no cell, beside ours."""
    recipe, texts = comparison.recipe, []
    for a in comparison.answers():
        metric, artifact = a.printed.metric, a.printed.artifact
        ruled = recipe.values[metric] in RULES and not _in_cells(comparison, metric)
        if a.ours and (ruled or artifact != recipe.artifact or a.printed.fact("stat")):
            about = ", ".join(f"{k}={v}" for k, v in a.printed.facts)
            pair = f"{number(a.printed.value)}, ours {told(recipe.values[metric], a.ours.mean)}"
            texts.append(f"{metric} {pair} ({artifact}: {about}): {a.verdict}")
    return texts


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """CSV with a line per cell, Markdown and LaTeX in the paper's layout."""
    recipe = comparison.recipe
    folder.mkdir(parents=True, exist_ok=True)
    texts = {".csv": _as_csv(comparison), ".md": as_markdown(comparison), ".tex": _as_latex(comparison)}
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"{recipe.paper}-{recipe.artifact}{suffix}")
        write_atomically(paths[-1], text.encode())
    return paths


def picture(comparison: Comparison, folder: Path) -> list[Path]:
    """The figure, where the paper has one."""
    data = png(comparison)
    if data is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{comparison.recipe.paper}-{comparison.recipe.artifact}.png"
    write_atomically(path, data)
    return [path]


def _as_csv(comparison: Comparison) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    axes = list(comparison.recipe.axes)
    writer.writerow([*axes, "metric", "ours", "std", "seeds", "paper", "difference", "verdict"])
    for (_, metric, name), key in itertools.product(parts(comparison), comparison.keys()):
        ours, theirs = comparison.of_cell(key, metric, name)
        answer = comparison.answer(theirs) if theirs else None
        difference = answer.difference if answer else None
        std = ours.std if ours else None
        mean, seeds = (ours.mean, ours.seeds) if ours else (None, None)
        numbers = (mean, std, seeds, theirs.value if theirs else None, difference)
        texts = ["" if v is None else f"{v:.6g}" for v in numbers]
        writer.writerow([*key, name, *texts, answer.verdict if answer else ""])
    return text.getvalue()


def as_markdown(comparison: Comparison) -> str:
    recipe = comparison.recipe
    lines = [f"### {recipe.name}: {recipe.title}", ""]
    for heading, metric, name in parts(comparison):
        header, table = grid(comparison, metric, name)
        lines += [
            f"{heading}{beside(comparison)}",
            "",
            f"| {' | '.join(header)} |",
            f"|{' --- |' * len(header)}",
        ]
        lines += [f"| {' | '.join(row)} |" for row in table]
        lines.append("")
    return "\n".join([*lines, *(f"- {text}" for text in remarks(comparison)), ""])


def _as_latex(comparison: Comparison) -> str:
    lines = [f"% {comparison.recipe.name}: {comparison.recipe.title}{beside(comparison)}"]
    for heading, metric, name in parts(comparison):
        header, table = grid(comparison, metric, name)
        left = len(comparison.recipe.table["rows"])
        lines += [
            f"% {heading}",
            rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(header) - left)}}}",
            r"\toprule",
        ]
        lines += [" & ".join(map(_escaped, header)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_escaped, row)) + r" \\" for row in table]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    for symbol in "&%_#${}":
        text = text.replace(symbol, "\\" + symbol)
    text = text.replace("^", r"\textasciicircum{}").replace("~", r"\textasciitilde{}")
    return text.replace("±", r"$\pm$")
