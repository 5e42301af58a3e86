"""The wheel holds the configuration, all code and its data, and works from any folder; one version."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

from fedpriv import __version__

ROOT = Path(__file__).parent.parent


def files(folder: str, suffix: str) -> set[str]:
    return {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob(f"*{suffix}")}


def test_the_wheel_is_complete_and_runs_elsewhere(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    # From a copy without earlier builds, which setuptools would mix in.
    for name in ("fedpriv", "conf", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", ROOT / name, tmp_path / name], check=True)
    done = subprocess.run(
        [*build, "--wheel-dir", tmp_path / "dist", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob(f"fedpriv-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert files("fedpriv", ".py") <= names
    assert {f"fedpriv/{name}" for name in files("conf", ".yaml") | files("conf", ".py")} <= names
    data = {name for suffix in (".csv", ".j2", ".typed") for name in files("fedpriv", suffix)}
    assert {"fedpriv/reproduce/reference.csv", "fedpriv/reproduce/report.html.j2"} <= data <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fedpriv", f"fedpriv-{__version__}.dist-info"}, "no tests, scripts or outputs"
    script = (
        "import fedpriv; print(fedpriv.__file__); from fedpriv.commands.main import main; "
        "main(['list', 'model'])"
    )
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""}
    (tmp_path / "elsewhere").mkdir()
    shown = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "elsewhere",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert str(tmp_path / "installed") in shown.stdout and "resnet18" in shown.stdout


def test_the_top_level_is_what_was_agreed():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        return  # not a checkout
    top = {line.split("/")[0] for line in tracked.stdout.splitlines() if not line.startswith(".")}
    rooms = {"conf", "fedpriv", "scripts", "tests", "outputs"}
    papers = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"}
    assert top == rooms | papers | {"pyproject.toml", "setup.py", "Makefile"}


def test_the_version_is_written_once_and_others_follow():
    assert not re.search(r"^version *= *\"", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert "version" not in citation and citation["cff-version"] == "1.2.0"
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_trainer_names_no_method():
    """Every part of every paper is a plug-in: the round knows seams only."""
    text = (ROOT / "fedpriv" / "rounds" / "trainer.py").read_text().lower()
    for word in (
        "ldp",
        "cdp",
        "ddp",
        "pfa",
        "scaffold",
        "fedprox",
        "fedpd",
        "duchi",
        "skellam",
        "isinstance(self.m",
    ):
        assert word not in text
