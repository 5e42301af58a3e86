"""`fedpriv table FOLDER`: runs of one's own as a table like a paper's, on screen, as CSV, Markdown, LaTeX."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from fedpriv.config.composing import expand
from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.session.screen import console, errors
from fedpriv.studies import compare, formats, reader, selecting
from fedpriv.studies.cells import Grid
from fedpriv.studies.compare import Pair
from fedpriv.studies.groups import differing

HELP = """\
usage: fedpriv table FOLDER ... [rows=KEY,KEY] [columns=KEY] [value=NAME] [key=value ...] [--compare]
       fedpriv table PAPER/ARTIFACT | PAPER | all | ./RECIPE.yaml      the table of a recipe

The finished runs in and below the folders: a cell is the mean and the deviation over seeds.

options
  rows=, columns=   keys of config.yaml; default: every key in which the runs differ, epsilon in the columns
  value=NAME        a number of summary.json                                  (default accuracy_global_last)
  key=value,value   only the runs that agree
  out=STEM          where CSV, Markdown and LaTeX go (default: table in the first folder); out=FILE.tex: one
  --compare         tests every two rows of each column, seed by seed, corrected by Holm
  test=t|wilcoxon   which test                                                (default t)

Bold is the best of a column, if it leads every other cell by more than the standard deviation of a difference
of two runs. Runs in one cell that differ in more than the seed are refused; what else differs between cells
is said below the table. A diverged run is marked, and never part of a mean.

example
  fedpriv table outputs/study rows=dp_variant,aggregator columns=epsilon --compare
"""
VALUE = "accuracy_global_last"
_OPTIONS = ("rows", "columns", "value", "out", "test")
_WRITERS = {".csv": formats.as_csv, ".md": formats.as_markdown, ".tex": formats.as_latex}
_PLAIN = 160


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    told = selecting.sort_out(arguments, _OPTIONS, {"--compare": 0})
    test = told.options.get("test", "t")
    if test not in compare.TESTS:
        raise UserError(f"test={test}: choose one of {', '.join(compare.TESTS)}")
    finished, others = reader.find(told.folders)
    runs = selecting.chosen(finished, told.filters)
    if not runs:
        which = " ".join(f"{k}={v}" for k, v in told.filters.items())
        raise UserError(f"{which}: no finished run agrees; `fedpriv runs` lists what there is")
    paths = _paths(told.options.get("out"), told.folders[0])
    rows, columns = axes_of(runs, told.options)
    grid = Grid(runs, rows, columns, told.options.get("value", VALUE))
    found = compare.pairs(grid, test) if "--compare" in told.flags else None
    _show(grid)
    if found is not None:
        _show_pairs(grid, found, test)
    _write(grid, found, paths)
    if others:
        errors.print(f"warning: {others} runs that are not finished are left out", soft_wrap=True)
    return 0


def axes_of(runs: Sequence[reader.Result], options: dict[str, str]) -> tuple[list[str], list[str]]:
    given = {
        side: [expand(key) for key in options.get(side, "").split(",") if key] for side in ("rows", "columns")
    }
    found = list(differing(runs, [*given["rows"], *given["columns"]]))
    if "columns" not in options and "rows" not in options and "epsilon" in found:
        given["columns"] = ["epsilon"]
        found.remove("epsilon")
    if "rows" not in options:
        given["rows"] = found or ["dp_variant"]
    return given["rows"], given["columns"]


def _paths(out: str | None, folder: Path) -> list[Path]:
    if out is None:
        place = folder.parent if (folder / "config.yaml").exists() else folder
        return [place / f"table{suffix}" for suffix in _WRITERS]
    if Path(out).suffix in _WRITERS:
        return [Path(out)]
    return [Path(f"{out}{suffix}") for suffix in _WRITERS]


def _show(grid: Grid) -> None:
    wide = console if console.is_terminal else Console(highlight=False, markup=False, width=_PLAIN)
    screen = Screen(title=f"{grid.value}, from {len(grid.runs)} runs", title_justify="left")
    for number, name in enumerate(formats.header(grid)):
        side: Literal["left", "right"] = "left" if number < len(grid.row_keys) else "right"
        screen.add_column(name, justify=side, overflow="fold")
    for row in grid.rows:
        cells = []
        for column in grid.columns:
            best = (row, column) in grid.best
            words = formats.plain(grid, row, column)
            cells.append(Text(f"*{words}" if best else words, style="bold" if best else ""))
        screen.add_row(*row, *cells)
    wide.print(screen)
    wide.print(grid.caption().replace("Bold:", "* and bold:"))
    for remark in grid.remarks():
        errors.print(f"note: {remark}", soft_wrap=True)


def _show_pairs(grid: Grid, found: Sequence[Pair], test: str) -> None:
    wide = console if console.is_terminal else Console(highlight=False, markup=False, width=_PLAIN)
    screen = Screen(title="differences", title_justify="left")
    for name in _pair_header():
        screen.add_column(name, justify="left" if name in ("where", "one", "other", "") else "right")
    for pair in found:
        screen.add_row(*_pair_row(pair))
    wide.print(screen)
    wide.print(compare.remark(found, test))


def _pair_header() -> list[str]:
    return ["where", "one", "other", "seeds", "one - other", "p", "p corrected", ""]


def _pair_row(pair: Pair) -> list[str]:
    verdict = pair.why
    if pair.corrected is not None:
        verdict = "differ" if pair.corrected < compare.LEVEL else "no difference shown"
    keys = [", ".join(map(formats.shown, key)) or "all" for key in (pair.where, pair.one, pair.other)]
    ps = ["" if p is None else f"{p:.3g}" for p in (pair.p, pair.corrected)]
    return [*keys, str(pair.seeds), f"{pair.difference:+.4g}", *ps, verdict]


def _write(grid: Grid, found: Sequence[Pair] | None, paths: Sequence[Path]) -> None:
    texts = {path: _WRITERS[path.suffix](grid) for path in paths}
    if found is not None:
        out = io.StringIO(newline="")
        header = [name or "verdict" for name in _pair_header()]
        csv.writer(out, lineterminator="\n").writerows([header, *map(_pair_row, found)])
        texts[paths[0].with_name(f"{paths[0].stem}-compare.csv")] = out.getvalue()
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as problem:
            raise UserError(
                f"out={path}: cannot be written ({problem.strerror}); choose another"
            ) from problem
        console.print(f"written   {path}", soft_wrap=True)
