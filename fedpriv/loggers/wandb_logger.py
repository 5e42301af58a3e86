"""The same numbers to Weights & Biases: offline by default, and never in the way of the run."""

import contextlib
import hashlib
import http.client
import logging
import os
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from fedpriv.config.catalogue import option_of
from fedpriv.loggers.base import Logger, pictures
from fedpriv.session.screen import console

TABLE_ROWS = 10_000  # W&B shows no more, and clients.csv has one row per client and round

# Read from the environment when wandb is imported, set up or starts its service process.
ENVIRONMENT = {
    "WANDB_ERROR_REPORTING": "false",  # telemetry and crash reports, which are sent offline, too
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_WEAVE": "true",
    "WANDB_SILENT": "true",
}

SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_stats": True,  # also the helper process that samples the system
    "x_disable_meta": True,
    "x_disable_machine_info": True,  # also the query of a cloud's metadata address
    "x_disable_viewer": True,
    "x_save_requirements": False,
    "login_timeout": 30,
    "init_timeout": 60,
    "finish_timeout": 90,
    "finish_timeout_raises": True,
}

PATIENCE = 5.0  # seconds for the first sign of W&B's server

_log = logging.getLogger(__name__)
_server: list[bool] = []  # whether it answered, once this process has asked: all cells of a sweep share it


class _Stuck(Exception):
    """W&B did not answer in time."""


class WandbLogger(Logger):
    """Config, rounds, summary and tables as one W&B run; a failure switches it off for this run, a server
    that does not answer takes it offline."""

    limit = 120.0  # seconds any one call may take; above W&B's own limits, which end more gently

    def __init__(
        self,
        *,
        project: str = "fedpriv",
        entity: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        tags: list[str] | None = None,
        job_type: str = "train",
    ) -> None:
        self.project, self.entity, self.group, self.mode = project, entity, group, mode
        self.tags, self.job_type = tags, job_type
        self._run: Any = None

    def start(self, *, name: str, config: dict[str, Any], folder: Path) -> None:
        self._run, self._folder, self.complete = None, folder, True
        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        if mode == "disabled":
            return
        if mode == "online" and not _reachable():
            mode = "offline"
        self._run = self._attempt("start", lambda: self._begin(mode, name, config, folder))
        if self._run is None and mode == "online":
            _unreachable("the start failed")

    def _begin(self, mode: str, name: str, config: dict[str, Any], folder: Path) -> Any:
        _prepare_environment(folder)
        import wandb

        # Older releases lack some of the switches and refuse a name they do not know.
        known = {key: value for key, value in SETTINGS.items() if key in wandb.Settings.model_fields}
        init: Any = wandb.init
        above = folder.resolve().parent.name
        run = init(
            project=self.project,
            entity=self.entity,
            group=self.group or (above if above != "runs" else None),
            tags=_names(config) if self.tags is None else list(self.tags),
            job_type=self.job_type,
            mode=mode,
            name=name,
            id=run_id(folder),
            resume="allow",
            config=config,
            dir=str(folder),
            reinit="create_new",  # several runs of a multirun share one process
            settings=wandb.Settings(**known),
        )
        # W&B would put the last round's seconds and bytes where the run's totals belong.
        run.define_metric("*", step_metric="round", summary="none")
        return run

    def log(self, row: dict[str, Any]) -> None:
        if self._run is not None:
            self._attempt("log", lambda: self._run.log(dict(row), step=int(row["round"])))

    def finish(self, summary: dict[str, Any], tables: dict[str, Path]) -> None:
        if self._run is None:
            return
        run = self._run

        def job() -> None:
            # Into the summary, not a history row: a step after the last round would be in the way of
            # that round when the run is continued.
            import wandb

            try:
                run.summary.update(summary)
                shown: list[Any] = [[k, str(v)] for k, v in summary.items() if not isinstance(v, dict | list)]
                run.summary["tables/result"] = wandb.Table(columns=["value", "result"], data=shown)
                for name, path in pictures(self._folder).items():
                    run.summary[f"pictures/{name}"] = wandb.Image(str(path))
                for name, path in tables.items():
                    run.summary.update({f"tables/{name}{key}": value for key, value in _table(path).items()})
            finally:
                run.finish()

        kept = getattr(getattr(run, "settings", None), "sync_dir", None)
        offline = bool(getattr(run, "offline", False))
        self._attempt("finish", job)
        self._run = None
        if self.complete and offline and kept:
            console.print(f"wandb     wandb sync {kept}", soft_wrap=True)

    def _attempt(self, what: str, job: Callable[[], Any]) -> Any:
        """The job's result, or None and W&B switched off. In a thread, so that a hang cannot hold the run."""
        result: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                result.append(job())
            except BaseException as error:  # also an attempt of W&B to exit
                errors.append(error)

        thread = threading.Thread(target=work, name="wandb", daemon=True)
        thread.start()
        thread.join(self.limit)
        if result:
            return result[0]
        self._run, self.complete = None, False
        error = errors[0] if errors else _Stuck(f"no answer within {self.limit:g} s")
        reason = (str(error).strip().splitlines() or [""])[0]
        _log.warning(
            "W&B is switched off for this run, its CSV files are complete: %s failed (%s: %s)",
            what,
            type(error).__name__.strip("_"),
            reason,
        )
        if isinstance(error, (_Stuck, ConnectionError)):
            _drop_service()
        return None


def _reachable() -> bool:
    """Whether W&B's server answers at all, asked once: its own start takes a minute to find out that it does
    not, and a sweep would pay that for every cell."""
    if not _server:
        url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
        answered: list[bool] = []
        thread = threading.Thread(target=lambda: answered.append(_answers(url)), daemon=True)
        thread.start()  # in a thread, for looking up a name has no time limit
        thread.join(PATIENCE)
        if answered == [True]:
            _server.append(True)
        else:
            _unreachable(f"{url} does not answer")
    return _server[-1]


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True  # it said no, so it is there
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def _unreachable(why: str) -> None:
    _server[:] = [False]
    _log.warning(
        "W&B goes offline from here on (%s), `wandb sync` sends it later; CSV files are complete", why
    )


def run_id(folder: Path) -> str:
    """The same for every start in this folder. The digest keeps folders apart that share a name (a
    multirun calls them 0, 1, ...)."""
    folder = folder.resolve()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-")[:80]
    return f"{name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}".lstrip("-")


def _names(config: dict[str, Any]) -> list[str]:
    """What the run is made of, as the command line calls it."""
    chosen = ("dataset", "model", "dp_variant", "aggregator", "algorithm")
    return [option_of(group, config[group]) for group in chosen if "_target_" in config.get(group, {})]


def _prepare_environment(folder: Path) -> None:
    os.environ.update(ENVIRONMENT)
    # Unset, W&B asks the Kubernetes API for the name of the image.
    os.environ.setdefault("WANDB_DOCKER", "")
    # Staged tables and the service's log would go into the home folder.
    os.environ["WANDB_DATA_DIR"] = os.environ["WANDB_CACHE_DIR"] = str((folder / "wandb").resolve())
    if "wandb" not in sys.modules:
        # Somebody else's service process may have been started with telemetry.
        os.environ.pop("WANDB_SERVICE", None)


def _table(path: Path) -> dict[str, Any]:
    """The table in a CSV file, by the suffix of its name, and a note if it is not all of it."""
    import pandas as pd
    import wandb

    frame = pd.read_csv(path, nrows=TABLE_ROWS)
    data: Any = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    table = wandb.Table(columns=[str(column) for column in frame], data=data, allow_mixed_types=True)
    with path.open(encoding="utf-8") as lines:
        rows = sum(1 for line in lines if line.strip()) - 1
    if rows <= len(frame):
        return {"": table}
    note = f"the first {len(frame)} of {rows} rows; all of them are in {path.name}"
    _log.info("W&B gets %s", note)
    return {"": table, "_note": note}


def _drop_service() -> None:
    """End a service process that is stuck or gone: W&B would wait for it when Python exits."""
    with contextlib.suppress(BaseException):
        from wandb.sdk import wandb_setup

        connection: Any = wandb_setup.singleton()._connection
        connection._proc._process.kill()
    with contextlib.suppress(BaseException):
        import wandb

        wandb.teardown()
