"""A grid as CSV, Markdown and LaTeX (booktabs)."""

import csv
import io
import math
from collections.abc import Callable, Sequence

from fedpriv.studies.cells import NOTHING, SPREAD, Cell, Grid, Key

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
}  # fmt: skip


def number(value: float) -> str:
    """Three decimals, or four digits of what is large."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def plain(grid: Grid, row: Key, column: Key) -> str:
    """A cell in words."""
    cell = grid.cells.get((row, column))
    if cell is None:
        return ""
    if failed := unusual(cell, grid.value):
        return failed
    mean = cell.mean
    assert mean is not None
    spread = f" ±{number(mean.std)}" if mean.std is not None and math.isfinite(mean.std) else ""
    return f"{number(mean.mean)}{spread}{_count(grid, cell)}"


def unusual(cell: Cell, value: str) -> str:
    """What stands instead of a mean where some seed has none."""
    if cell.diverged:
        return "diverged" + (f" {cell.diverged} of {cell.seeds}" if cell.seeds > 1 else "")
    if cell.missing:
        word = "never" if value == "rounds_to_target" else "none"
        return word + (f" {cell.missing} of {cell.seeds}" if cell.seeds > cell.missing else "")
    return ""


def _count(grid: Grid, cell: Cell) -> str:
    return f" (n={cell.seeds})" if len(grid.seeds) > 1 else ""


def column_name(grid: Grid, column: Key) -> str:
    """A column's head: its value alone where one key makes the columns."""
    if not grid.column_keys:
        return grid.value
    if len(grid.column_keys) == 1:
        return shown(column[0])
    return ", ".join(f"{k} {shown(v)}" for k, v in zip(grid.column_keys, column, strict=True))


def shown(word: str) -> str:
    return "no DP" if word == NOTHING else word


def text_rows(grid: Grid, bold: Callable[[str], str]) -> list[list[str]]:
    lines = []
    for row in grid.rows:
        cells = [plain(grid, row, column) for column in grid.columns]
        best = [(row, column) in grid.best for column in grid.columns]
        lines.append([*row, *(bold(c) if b else c for c, b in zip(cells, best, strict=True))])
    return lines


def header(grid: Grid) -> list[str]:
    """The names of all columns, a single key's before each of its values."""
    names = [column_name(grid, column) for column in grid.columns]
    if len(grid.column_keys) == 1:
        names = [name if name == shown(NOTHING) else f"{grid.column_keys[0]} {name}" for name in names]
    return [*grid.row_keys, *names]


def as_csv(grid: Grid) -> str:
    """A line a cell, everything in it."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    names = ("mean", "std", "seeds", "diverged", "without_number", "best")
    writer.writerow([*grid.row_keys, *grid.column_keys, "value", *names])
    for row in grid.rows:
        for column in grid.columns:
            if (cell := grid.cells.get((row, column))) is None:
                continue
            mean = cell.mean
            numbers = (mean.mean, mean.std) if mean else (None, None)
            texts = ["" if n is None else f"{n:.6g}" for n in numbers]
            counts = (cell.seeds, cell.diverged, cell.missing, int((row, column) in grid.best))
            writer.writerow([*row, *column, grid.value, *texts, *counts])
    return out.getvalue()


def as_markdown(grid: Grid) -> str:
    head = header(grid)
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(grid.row_keys) + " ---: |" * len(grid.columns)]
    lines += [f"| {' | '.join(row)} |" for row in text_rows(grid, lambda text: f"**{text}**")]
    return "\n".join([*lines, "", grid.caption(), *(f"Note: {r}." for r in grid.remarks()), ""])


def as_latex(grid: Grid) -> str:
    """A float with booktabs' rules: needs \\usepackage{booktabs}."""
    left, right = len(grid.row_keys), len(grid.columns)
    notes = " ".join([grid.caption(), *(f"Note: {r}." for r in grid.remarks())])
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_caption(notes)}}}",
        rf"\begin{{tabular}}{{{'l' * left}{'r' * right}}}",
        r"\toprule",
    ]
    if len(grid.column_keys) == 1:
        over = rf"\multicolumn{{{right}}}{{c}}{{{_symbol(grid.column_keys[0])}}}"
        lines += ["& " * left + over + r" \\", rf"\cmidrule(lr){{{left + 1}-{left + right}}}"]
    heads = [*map(_symbol, grid.row_keys), *(escaped(column_name(grid, c)) for c in grid.columns)]
    lines += [" & ".join(heads) + r" \\", r"\midrule"]
    before: Sequence[str] = ()
    for row in grid.rows:
        if before and left > 1 and before[0] != row[0]:
            lines.append(r"\addlinespace")
        cells = [_latex_cell(grid, row, column) for column in grid.columns]
        lines.append(" & ".join([*map(escaped, row), *cells]) + r" \\")
        before = row
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_cell(grid: Grid, row: Key, column: Key) -> str:
    text = escaped(plain(grid, row, column))
    return rf"\textbf{{{text}}}" if (row, column) in grid.best else text


def _symbol(key: str) -> str:
    return r"$\varepsilon$" if key == "epsilon" else escaped(key)


def escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _caption(text: str) -> str:
    return escaped(text).replace(escaped(SPREAD), r"$\sqrt{s_1^2 + s_2^2}$")
