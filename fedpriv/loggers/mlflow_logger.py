"""The same numbers to MLflow: params, metrics by round, the summary, tables and pictures as artifacts."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpriv.errors import UserError
from fedpriv.loggers.base import Careful, numbers, pictures
from fedpriv.loggers.wandb_logger import run_id

TAG = "fedpriv.run"  # by which a continued run finds its own again
_LONGEST = 500  # characters of a param
_PARAMS = 100  # at a time


class MLflowLogger(Careful):
    called = "MLflow"

    def __init__(self, *, experiment: str = "fedpriv", uri: str | None = None) -> None:
        if find_spec("mlflow") is None:
            raise UserError("logger=mlflow: is not installed; pip install 'fedpriv[mlflow]'")
        self.experiment, self.uri = experiment, uri

    def begin(self, name: str, config: dict[str, Any], folder: Path) -> None:
        import mlflow
        from mlflow.entities import Param

        self.folder = folder
        self._client = mlflow.MlflowClient(self.uri)
        found = self._client.get_experiment_by_name(self.experiment)
        kept = found.experiment_id if found else self._client.create_experiment(self.experiment)
        own = run_id(folder)
        before = self._client.search_runs([kept], f"tags.`{TAG}` = '{own}'", max_results=1)
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(kept, run_name=name, tags={TAG: own}).info.run_id
        params = [Param(k, str(v)[:_LONGEST]) for k, v in _flat(config).items()]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(self._run, params=params[start : start + _PARAMS])

    def write(self, row: dict[str, Any]) -> None:
        self._metrics({k: v for k, v in numbers(row).items() if k != "round"}, int(row["round"]))

    def end(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        self._metrics({f"summary.{k}": v for k, v in numbers(summary).items()}, int(summary["rounds"]))
        self._client.log_dict(self._run, summary, "summary.json")
        for path in [*tables.values(), *pictures(self.folder).values()]:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run)

    def _metrics(self, values: dict[str, float], step: int) -> None:
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(k, v, now, step) for k, v in values.items()])


def _flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found
