"""`fedpriv check mine.Trimmed`: puts a plug-in through what its seam promises."""

from omegaconf import OmegaConf

from fedpriv.contracts.bench import bench, tried
from fedpriv.errors import UserError

HELP = """\
usage: fedpriv check MODULE.CLASS [option=value ...] [-- group=option ...]
Puts a mechanism, aggregator, algorithm, upload, server or stage through what its seam promises.
Behind -- stands what its run needs, such as model.norm=batch.
"""


def main(rest: list[str]) -> int:
    if not rest or {"-h", "--help"} & set(rest):
        print(HELP, end="")
        return 0 if rest else 2
    cut = rest.index("--") if "--" in rest else len(rest)
    if wrong := [o for o in rest[1:cut] if "=" not in o]:
        raise UserError(f"{wrong[0]}: give an option as name=value")
    options = OmegaConf.to_container(OmegaConf.from_dotlist(rest[1:cut]))
    assert isinstance(options, dict)
    held = bench(rest[0], {str(k): v for k, v in options.items()}, tuple(rest[cut + 1 :]))
    failed = 0
    print(f"{rest[0]}: {held.group}")
    for check in held.checks():
        state, why = tried(check)
        failed += state == "FAILED"
        print(f"  {state:<7}{check.name}" + (f": {why}" if why else ""))
    return 1 if failed else 0
