"""`fedpriv report FOLDER`: the page of a study in one self-contained file."""

import base64
from collections.abc import Sequence
from pathlib import Path

from fedpriv.errors import UserError
from fedpriv.files import write_atomically
from fedpriv.studies import page, reader, selecting

HELP = """\
usage: fedpriv report FOLDER ... [key=value ...] [out=FILE.html]    (default: report.html in the first folder)
       fedpriv report [out=FILE.html] [readme=FILE.md]              everything that was reproduced

One page of the runs in and below the folders: all of them and how they ended, curves, epsilon, means over
seeds, partitions, and any two compared. `fedpriv board` shows the same while runs go on.
"""


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    told = selecting.sort_out(arguments, ("out",))
    runs = selecting.chosen(reader.look(told.folders), told.filters)
    if not runs:
        raise UserError(f"{', '.join(map(str, told.folders))}: no run there; make some with `fedpriv run`")
    out = Path(told.options.get("out") or told.folders[0] / "report.html")
    if out.suffix != ".html":
        raise UserError(f"out={out}: a report is a page; name a file that ends in .html")
    text = page.render(runs, _inside, title=", ".join(map(str, told.folders)), live=False)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
    except OSError as problem:
        raise UserError(f"out={out}: cannot be written ({problem.strerror}); choose another") from problem
    print(f"written   {out}")
    return 0


def _inside(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
