"""Every top-level value of a run: its default, its meaning and what is allowed.

Group options (model, dp_variant, ...) are YAML files with one `_target_`; see options.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING

from fedpriv.config.limits import Within

GROUPS = (
    "dataset", "model", "partition", "transform", "algorithm", "dp_variant", "aggregator", "budget", "upload",
    "server", "stage", "logger",
)  # fmt: skip


def _setting(default: Any, help: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help, **limits})


@dataclass
class CheckpointSchema:
    every: int = _setting(
        10, "rounds between checkpoints; 0: only at the end and on Ctrl-C", least=0, most=1_000_000
    )


@dataclass
class Schema:
    clients: int = _setting(20, "how many clients there are", least=1, most=1_000_000)
    rounds: int = _setting(60, "communication rounds", least=1, most=1_000_000)
    sample_rate: float = _setting(1.0, "share of the clients in a round", above=0, most=1)
    participations: int | None = _setting(
        None,
        "cross-device: rounds every client takes part in exactly; null: sampled at sample_rate",
        least=1,
        most=1_000_000,
    )
    separation: int | None = _setting(
        None,
        "with participations: the fewest rounds from one of a client's to its next; null: 1",
        least=1,
        most=1_000_000,
    )
    local_epochs: int = _setting(1, "passes over a client's data a round", least=1, most=10_000)
    local_steps: int | None = _setting(
        None, "local steps a round, instead of local_epochs", least=1, most=1_000_000
    )
    batch_size: int = _setting(
        64,
        "samples a step; under ldp the lot size, batches being drawn at rate 1 / steps a pass",
        least=1,
        most=1_000_000,
    )
    lr: float = _setting(0.1, "local learning rate", above=0, most=1e6)
    momentum: float = _setting(0.0, "local momentum", least=0, below=1)
    weight_decay: float = _setting(0.0, "local weight decay", least=0, most=1e6)
    epsilon: float = _setting(8.0, "privacy budget, where the budget group uses it", least=1e-4, most=1e6)
    delta: float = _setting(1e-3, "the delta of every client's (epsilon, delta)", least=1e-30, below=1)
    clip_norm: float = _setting(2.0, "clipping bound of the DP variant", least=1e-9, most=1e9)
    accountant: str = _setting("rdp", "how epsilon is composed", choices=("rdp", "prv", "pld"))
    noise_seed: str = _setting(
        "config",
        "config: noise repeatable from seed; os: from the system, for a release",
        choices=("config", "os"),
    )
    min_clients: int = _setting(
        1, "training ends when fewer clients can afford a round", least=1, most=1_000_000
    )
    seed: int = _setting(0, "seed of everything random", least=0, most=2**63 - 1)
    partition_seed: int | None = _setting(
        None,
        "seed of the partition alone, so that seeds can share one; null: the seed",
        least=0,
        most=2**63 - 1,
    )
    evaluate_every: int = _setting(1, "rounds between evaluations", least=1, most=1_000_000)
    target: float | None = _setting(
        None, "accuracy on the whole test set: summary.json says when it was reached", above=0, most=1
    )
    samples_at: list[int] = field(
        default_factory=list,
        metadata={
            "help": "rounds after which transformed samples are kept (0: before any): raw data, not private",
            "least": 0,
            "most": 1_000_000,
        },
    )
    validation: float = _setting(
        0.0,
        "share of the clients' training samples that is held out, to choose options on",
        least=0,
        below=1,
    )
    objective: Any = field(
        default=None,
        metadata={
            "help": "what a search is for: a key of summary.json or a list; null: accuracy_global_validation"
        },
    )
    device: str = _setting("auto", "where tensors live", choices=("auto", "cpu", "cuda", "mps"))
    dtype: str = _setting("float32", "number format", choices=("float32", "float64"))
    engine: str = _setting("fast", "fast, or the one-client-at-a-time oracle", choices=("fast", "loop"))
    threads: int | None = _setting(None, "worker threads on a CPU; null: one per core", least=1, most=1024)
    processes: int = _setting(
        1, "processes on this machine that share the run: the same numbers", least=1, most=1024
    )
    data_dir: str | None = _setting(
        "${oc.env:FEDPRIV_DATA,null}", "folder of the data sets; null: the user's cache folder"
    )
    personal: bool = _setting(
        False, "keep what every client has at home in personal.pt, beside model.pt: not private"
    )
    resume: bool = _setting(True, "continue or reuse what the run folder holds; false: start anew")
    checkpoint: CheckpointSchema = field(default_factory=CheckpointSchema)

    dataset: Any = MISSING
    model: Any = MISSING
    partition: Any = MISSING
    transform: Any = MISSING
    algorithm: Any = MISSING
    dp_variant: Any = MISSING
    aggregator: Any = MISSING
    budget: Any = MISSING
    upload: Any = MISSING
    server: Any = MISSING
    stage: Any = MISSING
    logger: Any = MISSING


def described(settings: type = Schema, prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, default, meaning and limits) of every value a user can set at the top level."""
    rows = []
    for f in fields(settings):
        if f.default_factory is CheckpointSchema:
            rows += described(CheckpointSchema, f"{f.name}.")
        elif "help" in f.metadata:
            default = str(f.default_factory() if callable(f.default_factory) else f.default)
            words = within_of(f.metadata).words()
            text = f.metadata["help"] + (f" ({words})" if words else "")
            rows.append((prefix + f.name, "null" if default == "None" else default, text))
    return rows


def within_of(metadata: Mapping[str, Any]) -> Within:
    return Within(
        **{name: metadata[name] for name in ("least", "above", "most", "below") if name in metadata}
    )
