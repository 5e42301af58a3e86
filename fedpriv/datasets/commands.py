"""What `fedpriv data list`, `fetch` and `verify` do; each returns the exit code."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from fedpriv.config.catalogue import targets
from fedpriv.datasets import Dataset
from fedpriv.datasets.features import Features
from fedpriv.datasets.files import Files
from fedpriv.errors import UserError


def _chosen(names: Sequence[str]) -> list[Dataset]:
    """The named datasets with their default options; all of them if none is named."""
    kinds = targets("dataset")
    if unknown := [name for name in names if name not in kinds]:
        raise UserError(f"unknown dataset {', '.join(unknown)}; choose from {', '.join(kinds)}")
    return [kinds[name]() for name in names or kinds]


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*(Column(title, overflow="fold") for title in columns))
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True, markup=False).print(table)


def _size(dataset: Dataset) -> str:
    return (
        "as in the file" if dataset.counts is None else " + ".join(f"{count:,}" for count in dataset.counts)
    )


def _present(dataset: Dataset, data_dir: Path) -> str:
    if not dataset.files:
        return "yes"
    found = dataset.on_disk(data_dir)
    if isinstance(dataset, Features) and found:
        return "\n".join(path.name for path, _ in found)
    return "yes" if found else "no"


def data_list(data_dir: Path) -> int:
    """Print every dataset: what it is, its size, and whether its files are there."""
    rows = [
        (each.name, each.about, _size(each), _present(each, data_dir), str(each.folder(data_dir)))
        for each in _chosen([])
    ]
    _print(("name", "what it is", "train + test", "present", "folder"), rows)
    return 0


def data_fetch(names: Sequence[str], data_dir: Path) -> int:
    """Fetch the named datasets, or all that have official files; go on after a failure and report it."""
    rows, errors = [], []
    for dataset in _chosen(names):
        if not names and isinstance(dataset, Features | Files):
            continue
        try:
            dataset.fetch(data_dir)
            rows.append((dataset.name, "ok", str(dataset.folder(data_dir))))
        except UserError as error:
            rows.append((dataset.name, "failed", str(dataset.folder(data_dir))))
            errors.append(str(error))
    _print(("name", "result", "folder"), rows)
    for line in errors:  # outside the table, which would break a line into pieces
        print(line, file=sys.stderr)
    return 1 if errors else 0


def data_verify(names: Sequence[str], data_dir: Path) -> int:
    """Verify the named datasets; without names, all, where an absent one is no failure."""
    rows, code = [], 0
    for dataset in _chosen(names):
        verdict = dataset.verify(data_dir)
        if not verdict.startswith("ok") and (names or verdict != "missing"):
            code = 1
        rows.append((dataset.name, verdict, str(dataset.folder(data_dir))))
    _print(("name", "result", "folder"), rows)
    return code
