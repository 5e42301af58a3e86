"""What a command imports, which is what its start costs: seen in a process of its own, not timed."""

import subprocess
import sys

import pytest

from tests.conftest import SMALL

HEAVY = {"torch", "opacus", "dp_accounting", "sklearn", "matplotlib", "pandas", "scipy", "numba", "wandb"}
PROGRAM = """
import sys
from fedpriv.commands.main import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print("code", stop.code)
print("imported", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    *_, code, names = done.stdout.splitlines()
    return int(code.removeprefix("code ")), set(names.split()[1:]), done


@pytest.mark.parametrize(
    "wrong",
    [
        ["clients=0"],
        ["model.sizes=[0]"],
        ["dp=cdp", "dp_variant.bound=wide"],
        ["aggregator.trim=1"],
        ["modell=mlp"],
        ["epsilon", "3"],
    ],
)
def test_a_refusal_imports_nothing_heavy(tmp_path, wrong):
    code, names, done = imported(tmp_path, "run", *wrong)
    assert code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not names & HEAVY
    assert list(tmp_path.iterdir()) == []


def test_listing_and_help_import_nothing_heavy(tmp_path):
    for arguments in (["list", "dp_variant"], ["run", "--help"], ["run", "--cfg", "job"], ["--help"]):
        code, names, _ = imported(tmp_path, *arguments)
        assert code == 0 and not names & HEAVY, arguments


def test_a_finished_run_is_shown_without_torch_and_trained_without_opacus(tmp_path):
    code, names, first = imported(tmp_path, "run", *SMALL)
    assert code == 0 and "torch" in names
    assert not names & {"opacus", "dp_accounting", "pandas", "wandb"}
    code, names, again = imported(tmp_path, "run", *SMALL)
    assert code == 0 and again.stdout.startswith("already done")
    assert not names & HEAVY - {"scipy"} and "scipy" not in names
    assert [line for line in again.stdout.splitlines() if "│" in line] == [
        line for line in first.stdout.splitlines() if "│" in line
    ]


@pytest.mark.parametrize("more", [(), ("accountant=prv",)])
def test_privacy_needs_no_pictures_and_of_opacus_the_maths_only(more, tmp_path):
    code, names, _ = imported(tmp_path, "privacy", "dp=cdp", *more)
    assert code == 0 and not names & {"matplotlib", "wandb", "sklearn", "opacus"}
