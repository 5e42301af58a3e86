"""Tab completion: Hydra's for values, ours for the commands around it."""

import contextlib
import glob
import io
import os
import re
import sys
from collections.abc import Sequence

from fedpriv.errors import UserError


def complete(arguments: list[str], commands: Sequence[str]) -> int:
    """Print what may follow; for `run` by Hydra, without the word `run` it does not know."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) == 2:
        print(" ".join(commands))
        return 0
    if words[1:2] and (proposed := _proposed(words)) is not None:
        print(" ".join(proposed))
        return 0
    from fedpriv.commands.job import hydra_main
    from fedpriv.config.composing import SHORT, expand
    from fedpriv.config.schema import GROUPS

    short = None
    if len(words) > 2:
        short = next((s for s in SHORT if words[-1].startswith((s + "=", s + "."))), None)
        found = re.fullmatch(r"(\w+)\.\w*", expand(words[-1]))
        if found and found.group(1) in GROUPS:
            print(" ".join(_keys(found.group(1), words[2:-1], words[-1])))
            return 0
        os.environ["COMP_LINE"] = " ".join([words[0], *map(expand, words[2:])])
    sys.argv = [sys.argv[0], *[a for a in arguments if a not in commands]]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        hydra_main()
    text = re.sub(r"(?<!\S)paper(/\S*)?(?!\S)", "", output.getvalue())  # recipes, not options
    print(re.sub(rf"\b{SHORT[short]}(?=[=.])", short, text) if short else text, end="")
    return 0


def _proposed(words: list[str]) -> list[str] | None:
    """What a command that is not told by overrides alone may be given; None: only overrides."""
    command, last = words[1], words[-1]
    found: list[str]
    if command == "figure":
        from fedpriv.figures.command import complete as kinds

        return kinds(words).split()
    if command == "features" and len(words) > 2:
        from fedpriv.encoders.settings import completions

        return list(completions(last))
    if command in ("reproduce", "table"):
        from fedpriv.reproduce.recipe import names

        recipes = names()
        papers = sorted({name.partition("/")[0] for name in recipes})
        found = [*recipes, *papers, "all", *_OPTIONS.get(command, ())]
    elif command == "list":
        from fedpriv.config.schema import GROUPS

        found = [*GROUPS, "--config-dir"]
    elif command == "data":
        from fedpriv.config.catalogue import contents

        found = ["list", "fetch", "verify"] if len(words) == 3 else [*contents("dataset"), "data_dir="]
    elif command == "evaluate":
        found = [*glob.glob(f"{last}*/"), "dataset=", "data_dir=", "client="]
    elif command in ("report", "check"):
        found = ["out=", "readme="] if command == "report" else []
    else:
        return None
    return [word for word in found if word.startswith(last)]


_OPTIONS = {"reproduce": ("--scale", "--seeds", "--only", "--jobs", "--dry-run")}


def _keys(group: str, before: list[str], word: str) -> list[str]:
    """What a group's option has that begins as the word does."""
    from fedpriv.config.composing import compose, in_one_line, without_config_dir

    try:
        with in_one_line():
            node = compose(
                *without_config_dir([w for w in before if w and w not in ("-m", "--multirun")])
            ).get(group)
    except UserError:  # nothing can be proposed for a line that is wrong
        return []
    start = word.partition(".")[0]
    keys = [f"{start}.{key}=" for key in node or () if key != "_target_"]
    return [key for key in keys if key.startswith(word)]
