"""`fedpriv evaluate`: how the model a run kept answers the test samples of its data set, or of another."""

import re
from pathlib import Path

from omegaconf import DictConfig
from rich.table import Table

from fedpriv.config.checks import check
from fedpriv.config.composing import compose, in_one_line
from fedpriv.errors import UserError
from fedpriv.files import read_json
from fedpriv.session.screen import console, errors
from fedpriv.session.trained import at_home, config_of, load, score, test_data

HELP = """\
usage: fedpriv evaluate RUN [client=N] [dataset=... dataset.KEY=... data_dir=...]

Scores model.pt in the folder of a finished run on the test samples of its data set, or of the one named: by
all of them and by class. client=N takes what that client keeps at home, from a run with personal=true.

  fedpriv evaluate outputs/runs/digits-mlp-ldp-mean-c20-eps8-s0-01f289c7
  fedpriv evaluate outputs/mine/0 dataset=files dataset.path=new.npz
"""


def evaluate(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0 if arguments else 2
    folders = [a for a in arguments if "=" not in a]
    if len(folders) != 1:
        raise UserError("give the folder of one run; `fedpriv evaluate --help` shows the form")
    folder, client, overrides = Path(folders[0]), None, []
    for word in arguments:
        key, equals, value = word.partition("=")
        if key == "client" and equals:
            if not re.fullmatch("[0-9]{1,9}", value):
                raise UserError(f"{word}: must be the number of a client, from 0 on")
            client = int(value)
        elif equals and re.fullmatch(r"\+*(dataset(\..+)?|data_dir)", key):
            overrides.append(word)
        elif equals:
            raise UserError(f"{word}: choose one of client, dataset, dataset.KEY, data_dir")
    cfg, summary = config_of(folder), read_json(folder / "summary.json")
    network = load(folder, client)
    data = test_data(_with(cfg, overrides), summary)
    found = score(network, data)
    if client is None and (home := at_home(network, cfg)):
        as_what = "the clients' mean" if str(cfg.dp_variant._target_).endswith(".NoPrivacy") else "untrained"
        errors.print(
            f"warning: {len(home)} tensors stay at the clients ({home[0]} ...), here they are {as_what}; "
            "client=N takes a client's own",
            soft_wrap=True,
        )
    table = Table(title=f"{data.name}: {found.samples:,} test samples", title_justify="left")
    for column in ("class", "samples", "accuracy"):
        table.add_column(column, justify="right")
    for name, (accuracy, count) in found.by_class.items():
        table.add_row(str(name), f"{count:,}", f"{accuracy:.3f}")
    console.print(table)
    console.print(f"accuracy  {found.accuracy:.4f}")
    console.print(f"loss      {found.loss:.4f}")
    console.print(f"model     {folder}", soft_wrap=True)
    return 0


def _with(cfg: DictConfig, overrides: list[str]) -> DictConfig:
    """The run's config with other data: the data set it had unless one is named."""
    named = any(word.startswith("dataset=") for word in overrides)
    before = [] if named else [f"dataset._target_={cfg.dataset._target_}"]
    with in_one_line():
        told = compose([*before, *overrides])
    if not named:
        given = {o.partition("=")[0].removeprefix("dataset.") for o in overrides if o.startswith("dataset.")}
        for key in set(cfg.dataset) - given:
            told.dataset[key] = cfg.dataset[key]
    check(told)
    cfg = cfg.copy()
    cfg.dataset, cfg.data_dir = told.dataset, told.data_dir
    return cfg
