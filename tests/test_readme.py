"""Every README tells the truth: commands run, examples work, links lead somewhere, tables are complete."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedpriv.config import catalogue
from fedpriv.config.schema import GROUPS
from fedpriv.reproduce.recipe import Recipe
from fedpriv.vision import tv_models
from tests.helpers.files import idx

ROOT = Path(__file__).parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "outputs" / "README.md",
        *sorted(ROOT.glob("conf/**/README.md")),
        *sorted(ROOT.glob("fedpriv/**/README.md")),
    )
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("fedpriv ")]


# Commands that belong together, such as runs and the figure of them, run in one folder; others alone.
SESSIONS = [
    pytest.param(page, session, id=f"{page}: {' '.join(session[0][1:])}")
    for page in PAGES
    for block in blocks(page, "sh")
    for session in (
        [commands(block)]
        if any(c[1] in ("figure", "distilled", "runs") for c in commands(block))
        else [[c] for c in commands(block)]
    )
]
# Added to every run, so that the form of the command is tested and not the patience of the reader.
QUICK = ["rounds=1", "clients=4", "partition=classes", "local_steps=1", "batch_size=8", "epsilon=8"]


@pytest.mark.parametrize(("page", "session"), SESSIONS)
def test_commands_run(fedpriv, tmp_path, monkeypatch, page, session):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_: str(tmp_path / "cache"))
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (80, 28, 28)).astype(np.uint8)
    for side in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(80, dtype=np.uint8) % 10)):
            (tmp_path / "MNIST" / "raw" / f"{side}-{kind}-ubyte").write_bytes(idx(array))
    (tmp_path / "features").mkdir()
    for name, code in re.findall(r"[Ww]rite `([\w.]+)`.*?```\w+\n(.*?)```", PAGES[page], re.DOTALL):
        (tmp_path / name).write_text(code)
    for command in session:
        if "weights=simclr.pt" in command:
            torch.save(tv_models.resnet50().state_dict(), tmp_path / "simclr.pt")
        elif "dataset=features" in command:
            (path,) = [word.split("=")[1] for word in command if word.startswith("dataset.path=")]
            x, y = np.ones((80, 5)), np.arange(80) % 10
            np.savez(tmp_path / "features" / path, x_train=x, y_train=y, x_test=x, y_test=y)
        done = fedpriv(*quickly(command[1:], tmp_path))
        assert done.code == 0, done.err


def quickly(command: list[str], folder: Path) -> list[str]:
    """The same with two values of each list and little work, leaving alone what the command sweeps."""
    if command[0] not in ("run", "privacy", "audit", "features", "distilled") or "--help" in command:
        return command
    command = [re.sub(r"^([\w./]+=[^,\[]+,[^,]+),.*", r"\1", word) for word in command]
    if command[0] == "features":
        return [*command, "size=32", f"data_dir={folder}"]
    quick = [q for q in QUICK if q.split("=")[0] not in {c.split("=")[0] for c in command if "," in c}]
    if "partition=dirichlet" in command:
        quick.remove("partition=classes")
    if any(c.startswith("participations=") for c in command):  # rounds and clients must fit each other
        quick = quick[2:]
    if command[0] == "distilled":
        quick += ["stage.rounds=1", "stage.latent=8", "epochs=0", "steps=2"]
    elif "stage=fedpd" in command:
        quick += ["stage.rounds=1", "stage.latent=8"]
    quick += ["samples_at=[0,1]"] * any(c.startswith("samples_at=") for c in command)
    return [*command, *quick, f"data_dir={folder}"]


def test_sweeps_are_cut_to_two_values_of_a_list():
    words = ["run", "-m", "epsilon=2,4,8", "agg=mean,pfa", "samples_at=[0,3,6]", "clients=50"]
    assert quickly(words, Path())[:6] == [*words[:2], "epsilon=2,4", *words[3:]]
    assert "epsilon=8" not in quickly(words, Path()) and "clients=4" in quickly(words, Path())


def test_there_are_commands_and_an_example():
    assert len(SESSIONS) >= 25 and "class TrimmedMean" in PAGES["README.md"]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")])
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        exec(compile(block.replace("rounds=5", "rounds=1, clients=4"), page, "exec"), {})


def test_the_recipe_to_start_from_is_sound(config):
    (text,) = blocks("conf/paper/README.md", "yaml")
    recipe = Recipe("mine/table1", yaml.safe_load(text))
    assert len(recipe.cells()) == 6 and recipe.cut("cpu")
    for cell in recipe.cells():
        config(*cell.overrides)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", PAGES[page]):
        assert ((ROOT / page).parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    for name in re.findall(r"`([\w/]+\.py)`", PAGES[page]):
        there = [ROOT / name, (ROOT / page).parent / name, *ROOT.glob(f"fedpriv/**/{name}")]
        assert any(path.is_file() for path in there) or f"rite `{name}`" in PAGES[page], name


def test_every_page_can_be_found_from_the_first_which_is_short():
    linked = re.findall(r"\]\(([^)#]+)\)", PAGES["README.md"])
    assert {page for page in PAGES if page != "README.md"} <= set(linked)
    assert len(PAGES["README.md"].encode()) <= 9000


@pytest.mark.parametrize("group", GROUPS)
def test_the_table_lists_every_option(group):
    (row,) = [line for line in PAGES["README.md"].splitlines() if re.match(rf"\| {group}\b", line)]
    listed = re.sub(r"\(.*?\)", "", row.split("|")[3]).replace(" ", "").split(",")
    assert sorted(listed) == sorted(catalogue.options(group))
