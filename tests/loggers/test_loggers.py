"""Where else a run's numbers go: TensorBoard, MLflow, several at once, and runs that were finished before."""

import json
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

import fedpriv
from fedpriv.loggers import sent
from fedpriv.loggers.base import Careful, Logger
from fedpriv.loggers.mlflow_logger import MLflowLogger
from fedpriv.loggers.several import Several
from tests.conftest import SMALL


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Kept(Logger):
    """Remembers what it is told."""

    told: list = []  # noqa: RUF012

    def __init__(self, *, note: str = ""):
        self.note = note

    def start(self, *, name, config, folder):
        Kept.told.append(("start", name, config["clients"]))

    def log(self, row):
        Kept.told.append(("log", row["round"], row["seconds"]))

    def finish(self, summary, tables):
        assert all(path.is_file() for path in tables.values())
        Kept.told.append(("finish", summary["rounds"], sorted(tables)))


TARGET = f"logger._target_={Kept.__module__}.Kept"


def test_a_finished_run_is_sent_once_to_every_logger():
    Kept.told = []
    live = fedpriv.run(*SMALL, TARGET, quiet=True)
    during, Kept.told = Kept.told, []
    assert [t[0] for t in during] == ["start", "log", "log", "log", "finish"]
    fedpriv.run(*SMALL, TARGET, quiet=True)
    assert Kept.told == []  # it has it
    again = fedpriv.run(*SMALL, TARGET, "logger.note=other", quiet=True)
    assert again.folder == live.folder
    assert Kept.told == during  # the same from the files as from the run
    fedpriv.run(*SMALL, quiet=True)
    assert Kept.told == during


def test_a_logger_that_failed_is_asked_again(monkeypatch, caplog):
    class Failing(Careful):
        called = "X"
        fails = True
        rows = 0

        def write(self, row):
            if Failing.fails:
                raise OSError("no\nroom")
            Failing.rows += 1

    monkeypatch.setattr(sys.modules[__name__], "Failing", Failing, raising=False)
    target = f"logger._target_={__name__}.Failing"
    with caplog.at_level(logging.WARNING):
        done = fedpriv.run(*SMALL, target, quiet=True)
    (record,) = [r for r in caplog.records if "X is switched off" in r.getMessage()]
    assert "log failed (OSError: no)" in record.getMessage()
    assert done.summary["rounds"] == 3 and not (done.folder / sent.LOGGED).exists()
    Failing.fails = False
    fedpriv.run(*SMALL, target, quiet=True)
    assert Failing.rows == 3 and (done.folder / sent.LOGGED).exists()


def test_several_at_once(monkeypatch):
    made = []

    class One(Logger):
        def __init__(self, *, project: str = "p"):
            made.append(project)
            self.rows = []

        def log(self, row):
            self.rows.append(row)

    monkeypatch.setattr("fedpriv.loggers.several.target_of", lambda group, node: One)
    both = Several(of=["wandb", "csv"], options={"wandb": {"project": "mine"}})
    assert made == ["mine", "p"]
    both.log({"round": 1})
    assert [logger.rows for logger in both.loggers] == [[{"round": 1}]] * 2
    assert both.complete
    both.loggers[1].complete = False
    assert not both.complete


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (["logger.of=[wandb,paper]"], "no logger paper; choose from csv, mlflow, tensorboard, wandb"),
        (["logger.of=[csv]", "logger.options.wandb.project=x"], "logger.options.wandb: is not among"),
        (
            ["logger.of=[wandb]", "logger.options.wandb.colour=x"],
            "logger.options.wandb.colour: no such option",
        ),
    ],
)
def test_several_refuses_in_one_line(fedpriv, tmp_path, told, words):
    done = fedpriv("run", *SMALL, "logger=several", *told)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_logger_that_is_not_installed_says_what_to_do(fedpriv, tmp_path, monkeypatch, name):
    monkeypatch.setattr(f"fedpriv.loggers.{name}_logger.find_spec", lambda module: None)
    done = fedpriv("run", *SMALL, f"logger={name}")
    assert done.code == 2 and f"pip install 'fedpriv[{name}]'" in done.err
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_holds_every_round_once():
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = fedpriv.run(*SMALL, "logger=tensorboard", quiet=True)
    events = EventAccumulator(str(done.folder / "tensorboard"), size_guidance={"images": 0}).Reload()
    found = events.Scalars("accuracy_global")
    assert [event.step for event in found] == [1, 2, 3]
    assert [event.value for event in found] == pytest.approx(done.metrics["accuracy_global"].tolist())
    (total,) = events.Scalars("summary/uplink_bytes")
    assert total.value == done.summary["uplink_bytes"]
    assert set(events.Tags()["images"]) >= {"curves", "partition"}


class FakeMLflow:
    """As much of MLflow as is used, in memory."""

    def __init__(self, uri):
        self.uri = uri

    store: dict = {}  # noqa: RUF012

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=name) if name in self.store else None

    def create_experiment(self, name):
        self.store[name] = {}
        return name

    def search_runs(self, kept, wanted, max_results):
        return [r for r in self.store[kept[0]].values() if f"'{r.tags['fedpriv.run']}'" in wanted]

    def create_run(self, kept, run_name, tags):
        run = SimpleNamespace(
            info=SimpleNamespace(run_id=run_name),
            tags=tags,
            params={},
            metrics=[],
            files=[],
            status="RUNNING",
        )
        self.store[kept][run_name] = run
        return run

    def _run(self, name):
        return next(runs[name] for runs in self.store.values() if name in runs)

    def update_run(self, name, status):
        self._run(name).status = status

    def log_batch(self, name, metrics=(), params=()):
        self._run(name).metrics += metrics
        self._run(name).params |= dict(params)

    def log_dict(self, name, content, file):
        json.dumps(content)
        self._run(name).files.append(file)

    def log_artifact(self, name, path):
        self._run(name).files.append(path.rpartition("/")[2])

    def set_terminated(self, name):
        self._run(name).status = "FINISHED"


@pytest.fixture
def mlflow(monkeypatch):
    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.MlflowClient = FakeMLflow
    entities.Param = lambda key, value: (key, value)
    entities.Metric = lambda key, value, time, step: (key, value, step)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr("fedpriv.loggers.mlflow_logger.find_spec", lambda name: object())
    FakeMLflow.store = {}
    return FakeMLflow


def test_mlflow_gets_params_rounds_summary_and_files(mlflow):
    done = fedpriv.run(*SMALL, "logger=mlflow", "logger.experiment=study", quiet=True)
    (run,) = mlflow.store["study"].values()
    assert run.status == "FINISHED" and run.params["clients"] == "4"
    assert run.params["dp_variant.clip_norm"] == "2.0"
    rounds = [(value, step) for key, value, step in run.metrics if key == "seconds"]
    assert [step for _, step in rounds] == [1, 2, 3]
    assert ("summary.seconds", done.summary["seconds"], 3) in run.metrics
    assert {"summary.json", "clients.csv", "curves.png"} <= set(run.files)


def test_a_continued_run_goes_on_in_mlflow_where_it_was(mlflow, tmp_path):
    for _ in range(2):
        logger = MLflowLogger()
        logger.start(name="one", config={"a": 1}, folder=tmp_path)
        logger.log({"round": 1, "loss": 0.5})
    (run,) = mlflow.store["fedpriv"].values()
    assert [m[0] for m in run.metrics] == ["loss", "loss"]
