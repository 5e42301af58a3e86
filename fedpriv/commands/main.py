"""The command line: `fedpriv run` and its neighbours. `run` is Hydra's, with two short names."""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.errors import Interrupted, UserError

USAGE = """\
fedpriv: compose, run and honestly account private federated learning experiments

  fedpriv run [group=option ...] [key=value ...]   one experiment; with -m a sweep over comma lists
  fedpriv evaluate RUN [dataset=...]               how the model a run kept does on test samples
  fedpriv figure KIND FOLDER ... [out=FILE.png]    figures of finished runs: emd-epsilon, loss, samples, ...
  fedpriv reproduce PAPER/ARTIFACT [--scale cpu]   the runs of a published table or figure
  fedpriv table PAPER/ARTIFACT                     what came of them beside the printed numbers
  fedpriv runs [FOLDER ...] [key=value ...]        what was run: finished, running, failed; --diff, --clean
  fedpriv table FOLDER rows=KEY columns=KEY        your runs as a table: mean and deviation over seeds, LaTeX
  fedpriv report [FOLDER ...] [out=FILE.html]      your runs, or all that was reproduced, in one page
  fedpriv board [FOLDER ...] [port=N]              that page on this machine, while the runs go on
  fedpriv privacy [the same]                       what that run will guarantee and how much noise it adds
  fedpriv audit [KIND] [the same]                  attacks it: measured bounds beside the provable epsilon
  fedpriv list [group]                             every group and option: what it is, which paper
  fedpriv data list|fetch|verify [name ...]        data sets: what is there, download, check
  fedpriv check MODULE.CLASS [option=value ...]    whether a part of your own keeps its promises
  fedpriv features dataset=... encoder=...         encode images once, for dataset=features
  fedpriv distilled [as run] [images=8 out=...]    what stage=fedpd distils: accuracies, an inversion attack

examples
  fedpriv run
  fedpriv run dataset=mnist dp=ldp agg=mean clients=100 epsilon=8 rounds=150
  fedpriv run -m epsilon=2,4,6,8 clients=50,100
  fedpriv privacy dp=cdp epsilon=2 sample_rate=0.5
  fedpriv features dataset=cifar10 encoder=resnext

`fedpriv run --help` lists every key, `fedpriv features --help` every encoder.
Tab completion: eval "$(fedpriv -sc install=bash)"
"""
DATA = """\
usage: fedpriv data list | fetch [name ...] | verify [name ...] [data_dir=FOLDER]

  list     every data set: what it is, how large, whether its files are there
  fetch    download what is missing or damaged, all of it or the sets named
  verify   check the files: by published checksum, else by the number of samples

The folder is data_dir, else FEDPRIV_DATA, else your cache folder. Your own data need none: dataset=files.
"""
COMMANDS = (
    "run",
    "runs",
    "board",
    "evaluate",
    "reproduce",
    "table",
    "report",
    "figure",
    "privacy",
    "audit",
    "list",
    "data",
    "features",
    "distilled",
    "check",
)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
    except KeyboardInterrupt as stop:
        at_once = "stopped at once; the last checkpoint is kept and the same command continues"
        print(*(stop.args or [at_once]), file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        from fedpriv.config.mistakes import explain

        if isinstance(error, Interrupted):
            print(error, file=sys.stderr)
            code = 130
        else:
            line = explain(error)
            if line is None or os.environ.get("FEDPRIV_TRACEBACK"):
                traceback.print_exc()
            print(f"error: {line or f'{type(error).__name__}: {error}'}", file=sys.stderr)
            code = 1 if line is None else 2
    sys.exit(code)


def _dispatch(arguments: list[str]) -> int:
    if "-sc" in arguments or "--shell-completion" in arguments:
        return _complete(arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command in ("--version", "version"):
        from fedpriv import __version__

        print(f"fedpriv {__version__}")
        return 0
    if command not in COMMANDS:
        raise UserError(f"{command}: no such command; choose one of {', '.join(COMMANDS)}")
    functions = {
        "run": _run,
        "runs": _runs,
        "board": _board,
        "evaluate": _evaluate,
        "reproduce": _reproduce,
        "table": _table,
        "report": _report,
        "figure": _figure,
        "privacy": _privacy,
        "audit": _audit,
        "list": _list,
        "data": _data,
        "features": _features,
        "distilled": _distilled,
        "check": _check,
    }
    return functions[command](rest)


def _run(rest: list[str]) -> int:
    from fedpriv.commands.run import main
    from fedpriv.ranks.launchers import place

    if place() is None:
        return main(rest)
    from fedpriv.ranks.following import follow
    from fedpriv.ranks.starting import started_outside

    with started_outside() as group:
        return follow(group) if group.rank else main(rest)


def _evaluate(rest: list[str]) -> int:
    from fedpriv.commands.evaluate import evaluate

    return evaluate(rest)


def _reproduce(rest: list[str]) -> int:
    from fedpriv.reproduce.command import main

    return main(rest)


def _runs(rest: list[str]) -> int:
    from fedpriv.studies.runs import main

    return main(rest)


def _table(rest: list[str]) -> int:
    """Of a folder's runs, or of a recipe."""
    if _folders(rest):
        from fedpriv.studies.table import main

        return main(rest)
    from fedpriv.reproduce import table

    return table.main(rest)


def _report(rest: list[str]) -> int:
    """Of a folder's runs, or of everything that was reproduced."""
    if _folders(rest):
        from fedpriv.studies.report import main

        return main(rest)
    from fedpriv.reproduce import report

    return report.main(rest)


def _board(rest: list[str]) -> int:
    from fedpriv.studies.board import main

    return main(rest)


def _folders(words: list[str]) -> bool:
    """Whether a command is about runs in folders: one is named that is no recipe, or keys of runs are."""
    if any(word.startswith(("rows=", "columns=", "value=")) for word in words):
        return True
    if not (folders := [word for word in words if Path(word).is_dir()]):
        return False
    from fedpriv.reproduce.recipe import names

    recipes = {"all", *names(), *(name.partition("/")[0] for name in names())}
    return not recipes & set(folders)


def _figure(rest: list[str]) -> int:
    from fedpriv.figures.command import main

    return main(rest)


def _complete(arguments: list[str]) -> int:
    from fedpriv.commands.completion import complete

    return complete(arguments, COMMANDS)


def _compose(rest: list[str]) -> Any:
    """What a command that does not run is told, with the user's own options below --config-dir."""
    from fedpriv.config.composing import compose, without_config_dir

    return compose(*without_config_dir(rest))


def _privacy(rest: list[str]) -> int:
    if {"-h", "--help"} & set(rest):
        print("usage: fedpriv privacy [the same group=option and key=value as for run]")
        return 0
    from fedpriv.commands.privacy import show

    show(_compose(rest))
    return 0


def _audit(rest: list[str]) -> int:
    from fedpriv.audit.command import main

    return main(rest)


def _list(rest: list[str]) -> int:
    from fedpriv.config.catalogue import HELP, show

    if {"-h", "--help"} & set(rest):
        print(HELP, end="")
        return 0

    show(rest)
    return 0


def _check(rest: list[str]) -> int:
    from fedpriv.contracts.command import main

    return main(rest)


def _features(rest: list[str]) -> int:
    from fedpriv.encoders.command import features

    return features(rest)


def _distilled(rest: list[str]) -> int:
    from fedpriv.stages.fedpd.command import HELP, distilled, parse

    if {"-h", "--help"} & set(rest):
        print(HELP, end="")
        return 0
    own, overrides = parse(rest)
    return distilled(_compose(overrides), own)


def _data(rest: list[str]) -> int:
    if {"-h", "--help"} & set(rest):
        print(DATA, end="")
        return 0
    from fedpriv.datasets import default_data_dir
    from fedpriv.datasets.commands import data_fetch, data_list, data_verify

    folder = default_data_dir()
    names = []
    for argument in rest[1:]:
        if argument.startswith("data_dir="):
            folder = Path(argument.partition("=")[2]).expanduser()
        else:
            names.append(argument)
    action = rest[0] if rest else ""
    if action == "list":
        return data_list(folder)
    if action == "fetch":
        return data_fetch(names, folder)
    if action == "verify":
        return data_verify(names, folder)
    raise UserError("usage: fedpriv data list|fetch|verify [name ...] [data_dir=FOLDER]")
