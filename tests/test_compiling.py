"""Compiled code is made again when any file it is made of changes."""

import subprocess
import sys

import fedpriv.compiling

INNER = "from pathlib import Path\nfrom fedpriv.compiling import kept\nhere = Path(__file__).parent\n"
INNER += "compiled = kept(here / 'inner.py', here / 'outer.py')\n@compiled\ndef value():\n    return {}\n"
OUTER = "from inner import compiled, value\n@compiled\ndef twice():\n    return 2 * value()\nprint(twice())\n"


def test_a_change_of_what_is_called_is_noticed(tmp_path):
    (tmp_path / "outer.py").write_text(OUTER)
    answers = []
    for number in (1, 5, 5):
        (tmp_path / "inner.py").write_text(INNER.format(number))
        # -B: Python's own kept code knows a file by its second and size, and both may be the same here.
        run = subprocess.run(
            [sys.executable, "-B", "outer.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        answers.append(int(run.stdout))
    assert answers == [2, 10, 10]


def test_files_are_told_apart_by_what_they_hold(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("ab")
    other.write_text("c")
    before = fedpriv.compiling.fingerprint([one, other])
    one.write_text("a")
    other.write_text("bc")
    assert fedpriv.compiling.fingerprint([one, other]) != before
