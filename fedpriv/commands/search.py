"""hydra/sweeper=optuna: a search over options, continued after a kill, with what it costs in privacy.

A trial is an ordinary run in its own folder. The study is in search.db in the sweep's folder; its name
follows from what is searched for, so the same command finds it again: finished trials are not run again, one
that was under way goes on, and every trial draws its options by a generator of its own, as if nothing had
happened.

What the whole search costs stands beside the epsilon of one run (privacy/search.py): the composition of all
trials or, with `trials_law`, that of the best of a random number of random trials.
"""

import json
import logging
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from hydra.utils import instantiate
from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl, create_params_from_overrides
from omegaconf import DictConfig, OmegaConf
from optuna.trial import Trial, TrialState

from fedpriv.commands.objective import HELD_OUT
from fedpriv.config import identity
from fedpriv.config.composing import shown
from fedpriv.config.limits import cut
from fedpriv.errors import UserError
from fedpriv.files import json_text, make_folder, read_json, write_atomically
from fedpriv.privacy import search as cost
from fedpriv.randomness.source import seed_for
from fedpriv.session.screen import console, errors, number

_TRIALS = "fedpriv:trials"
_FOLDER = "fedpriv:folder"
_AGREE = 1e-3  # how far curves of trials that cost the same may be apart


class Search(OptunaSweeperImpl):
    def __init__(
        self,
        *,
        sampler: DictConfig,
        direction: Any,
        n_trials: int,
        trials_law: str,
        trials_shape: float,
        n_jobs: int,
        storage: str | None,
        study_name: str | None,
        params: DictConfig | None,
    ):
        if trials_law not in cost.LAWS:
            raise UserError(
                f"hydra.sweeper.trials_law={cut(trials_law)}: choose one of {', '.join(cost.LAWS)}"
            )
        if trials_law != "fixed" and not str(sampler.get("_target_")).endswith(".RandomSampler"):
            raise UserError(
                f"hydra.sweeper.trials_law={trials_law}: holds for trials that are drawn alike and "
                "independently; add hydra/sweeper/sampler=random"
            )
        if n_trials < 1 or n_jobs < 1 or trials_shape <= -1:
            raise UserError("hydra.sweeper: n_trials and n_jobs are at least 1, trials_shape is above -1")
        super().__init__(None, direction, storage, study_name, n_trials, n_jobs, 1.0, None, None, params)
        self.kind, self.law, self.shape = sampler, trials_law, trials_shape

    def sweep(self, arguments: list[str]) -> None:
        assert self.config is not None
        optuna.logging.set_verbosity(logging.WARNING)
        self._process_searchspace_config()
        told = [*self._parse_sweeper_params_config(), *arguments]
        space, fixed = create_params_from_overrides(told)
        space = {name: values for name, values in space.items() if name not in fixed}
        if not space:
            raise UserError(
                "a search needs values to choose from; add such as 'lr=tag(log,interval(0.01,1))'"
            )
        folder = Path(self.config.hydra.sweep.dir)
        make_folder(folder)
        directions = self._get_directions()
        self.name = self.study_name or identity.digest(self._text(space, fixed, directions).encode())
        study = optuna.create_study(
            study_name=self.name,
            storage=self.storage or f"sqlite:///{(folder / 'search.db').absolute()}",
            directions=directions,
            load_if_exists=True,
        )
        total = self._number(study, fixed.get("noise_seed") == "os")
        under_way = [Trial(study, t._trial_id) for t in study.trials if t.state == TrialState.RUNNING]
        if before := len(study.trials):
            console.print(f"continuing search {self.name}: {before - len(under_way)} of its trials are done")
        while under_way or len(study.trials) < total:
            batch, under_way = under_way[: self.n_jobs], under_way[self.n_jobs :]
            while len(batch) < self.n_jobs and not under_way and len(study.trials) < total:
                batch.append(self._asked(study, space))
            self._launch(study, batch, fixed, len(directions))
        self._report(study, folder, directions, str(fixed.get("objective", "")))

    def _text(self, space: dict[str, Any], fixed: dict[str, Any], directions: list[str]) -> str:
        """What makes two searches the same."""
        content = {
            "space": {name: repr(values) for name, values in space.items()},
            "fixed": {
                name: v for name, v in fixed.items() if name not in identity.IGNORED or name == "objective"
            },
            "directions": directions,
            "sampler": OmegaConf.to_container(self.kind),
            "trials": [self.n_trials, self.law, self.shape],
        }
        return json.dumps(content, sort_keys=True, default=str)

    def _number(self, study: optuna.Study, secret: bool) -> int:
        """How many trials, drawn once: where noise follows from the config, so does this."""
        if _TRIALS not in study.user_attrs:
            bits = secrets.randbits(53) if secret else seed_for(0, "trials", self.name) >> 10
            study.set_user_attr(_TRIALS, cost.drawn(self.law, self.n_trials, self.shape, bits * 2.0**-53))
        return int(study.user_attrs[_TRIALS])

    def _asked(self, study: optuna.Study, space: dict[str, Any]) -> Trial:
        """The next trial, by a generator that follows from the study and the trial's number."""
        seed = seed_for(0, "trial", self.name, len(study.trials)) % 2**32
        kind = dict(self.kind)
        if "seed" in kind and kind["seed"] is None:
            kind["seed"] = seed
        study.sampler = instantiate(kind)
        if not isinstance(study.sampler, optuna.samplers.BaseSampler):  # a grid needs to know the space
            study.sampler = study.sampler(
                {name: self._to_grid_sampler_choices(v) for name, v in space.items()}
            )
        trial = study.ask()
        for name, values in space.items():
            trial._suggest(name, values)
        return trial

    def _launch(self, study: optuna.Study, batch: list[Trial], fixed: dict[str, Any], wanted: int) -> None:
        cells = [tuple(f"{k}={v}" for k, v in {**trial.params, **fixed}.items()) for trial in batch]
        assert self.launcher is not None
        returns = self.launcher.launch(cells, initial_job_idx=self.job_idx)
        self.job_idx += len(returns)
        problem = ""
        for trial, done in zip(batch, returns, strict=True):
            value = done.return_value
            assert done.hydra_cfg is not None
            trial.set_user_attr(_FOLDER, str(done.hydra_cfg.hydra.runtime.output_dir))
            if isinstance(value, list) and len(value) == wanted:
                study.tell(trial, value)
                continue
            study.tell(trial, state=TrialState.FAIL)  # the sweep's report says why
            problem = str(value)
            if isinstance(value, list):
                problem = (
                    f"objective: {len(value)} of them, but hydra.sweeper.direction has {wanted}; give a "
                    "direction for each, such as hydra.sweeper.direction=[maximize,minimize]"
                )
        if problem and not any(t.state == TrialState.COMPLETE for t in study.trials):
            raise UserError(problem)

    def _report(self, study: optuna.Study, folder: Path, directions: list[str], objective: str) -> None:
        done = [t for t in study.trials if t.state == TrialState.COMPLETE]
        best = study.best_trials if len(directions) > 1 else [study.best_trial] if done else []
        spent = price(
            [_privacy(t) for t in study.trials], self.law, self.n_trials, self.shape, len(directions) == 1
        )
        content = {
            "trials": len(study.trials),
            "failed": len(study.trials) - len(done),
            "law": self.law,
            "best": [
                {"params": _plain(t.params), "values": t.values, "folder": t.user_attrs[_FOLDER]}
                for t in best
            ],
            **spent,
        }
        write_atomically(folder / f"search-{self.name}.json", json_text(content).encode())
        for t in best:
            options = " ".join(f"{shown(k)}={_short(v)}" for k, v in t.params.items())
            console.print(f"best: {options} ({', '.join(map(_short, t.values))})", soft_wrap=True)
        if "accuracy" in objective and HELD_OUT not in objective:
            errors.print(
                "warning: the best is picked on test data, where it looks too good; set validation=0.1",
                soft_wrap=True,
            )
        console.print(
            f"privacy: one run epsilon {number(spent['epsilon_one_run'])}, the whole search epsilon "
            f"{number(spent['epsilon_search'])} at delta {number(spent['delta'])} ({spent['search_is']})",
            soft_wrap=True,
        )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(params: dict[str, Any]) -> dict[str, Any]:
    return {shown(k): v for k, v in params.items()}


def _privacy(trial: optuna.trial.FrozenTrial) -> dict[str, Any] | None:
    """privacy.json of a trial's run; None if it never got so far as to release something."""
    path = Path(trial.user_attrs.get(_FOLDER, "")) / "privacy.json"
    return read_json(path) if path.is_file() else None


def price(
    reports: list[dict[str, Any] | None], law: cost.Law, mean: float, shape: float, one: bool = True
) -> dict[str, Any]:
    """The epsilons of one run and of the search, of the trials' privacy.json, and what they rest on.

    A trial of which there is none (it failed) is taken to have cost as much as the dearest; `one` says that
    there is one objective, and so one best.
    """
    known, trials = [report for report in reports if report is not None], len(reports)
    result: dict[str, Any] = {
        "epsilon_one_run": None,
        "epsilon_search": None,
        "delta": None,
        "search_is": "nothing: no guarantee for a single run",
        "search_does_not_cover": [
            "samples held out for validation: what they decide is which trial is the best",
            "scores on raw data, which go to whoever chooses",
        ],
    }
    if not known or any(report["epsilon_provable_max"] is None for report in known):
        return result
    delta, alone = (max(report[key] for report in known) for key in ("delta", "epsilon_provable_max"))
    result |= {"epsilon_one_run": alone, "delta": delta}
    curves = [curve for report in known if (curve := _curve(report)) is not None]
    if len(curves) < len(known):
        words = f"basic composition of all {trials} trials, deltas too"
        return result | {"epsilon_search": trials * alone, "delta": trials * delta, "search_is": words}
    found, end = np.array(curves), max(report["delta_of_the_noises_end"] or 0.0 for report in known)
    dearest = found.max(0)
    if law != "fixed" and one and np.allclose(found, dearest, rtol=_AGREE):
        curve, left = cost.repeated(dearest, law, mean, shape), delta - mean * end
        words = (
            f"the best of a random number of random trials, {law} of mean {mean:g} (Papernot and Steinke "
            "2022); the number and the other trials stay secret"
        )
    else:
        curve, left = found.sum(0) + (trials - len(known)) * dearest, delta - trials * end
        words = f"composition of all {trials} trials"
        if law != "fixed":
            words += (
                ", for a random number covers neither several objectives nor options that change the noise"
            )
    spent = cost.epsilon(curve, left) if left > 0 else float("inf")
    return result | {"epsilon_search": spent if np.isfinite(spent) else None, "search_is": words}


def _curve(report: dict[str, Any]) -> np.ndarray | None:
    values = report.get("renyi_curve")
    return None if values is None else np.array([np.inf if value is None else value for value in values])
