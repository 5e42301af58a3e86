"""What a run is: texts that are equal exactly when two runs would compute the same numbers.

A run's identity has two parts. `of_config` is known before anything is loaded: every resolved value, the kind
of device, and a digest of the source of parts that are not this package's. The folder's name ends with its
first eight characters. `Data.fingerprint` is the content of the data, known once they are loaded. This
package's own code is no part of either: `code` tells whether a finished run was made by another state of it.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

import fedpriv
from fedpriv.config.options import path_of, target_of
from fedpriv.config.schema import GROUPS, Schema
from fedpriv.config.signatures import written
from fedpriv.device import kind_of_device
from fedpriv.errors import UserError

# Where a run happens and how it is watched: none of it changes what is computed. The kind of device does.
IGNORED = (
    "data_dir", "device", "threads", "processes", "logger", "checkpoint", "resume", "target", "objective",
    "personal",
    "dataset.download",
)  # fmt: skip
# Keys added since results were committed, each with what runs had before it: at that value the key does not
# count, so their identity stays. As "key" or "group.key"; never taken out again.
ADDED: dict[str, Any] = {
    "dp_variant.against": "outsider",
    "separation": None,
    "validation": 0,
    "server": {"_target_": "fedpriv.servers.base.SGD"},
    "dataset.after_transform": False,
    "model.size": "small",
}
# Values that compute the very same as another: {"group.key": {value: the one it is told as}}.
SAME: dict[str, dict[str, str]] = {"dataset.dn": {"unit": "none"}}  # mean 0 and variance 1 change nothing
KINDS = ("cpu", "cuda", "mps")
_LENGTH, _SHORT = 16, 8


def of_config(cfg: DictConfig, device: str | None = None) -> str:
    """Sixteen characters that say what is run, on the config's kind of device or on the one given."""
    content = {f.name: _plain(cfg[f.name]) for f in fields(Schema) if f.name in cfg and f.name not in IGNORED}
    for group in set(GROUPS) & set(content):
        if source := _source(group, content[group]):
            content[group]["_source_"] = source
    for path in IGNORED:
        _drop(content, path)
    for path, before in ADDED.items():
        _drop(content, path, _number(before))
    for path, same in SAME.items():
        group, _, key = path.partition(".")
        if (told := content.get(group, {}).get(key)) in same:
            content[group][key] = same[told]
    content["device"] = device or kind_of_device(cfg.device)
    return digest(json.dumps(content, sort_keys=True).encode())


def short(identity: str) -> str:
    """As much of it as a folder's name holds."""
    return identity[:_SHORT]


def digest(*parts: bytes | memoryview) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:_LENGTH]


def _plain(value: Any) -> Any:
    return _number(OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value)


def _number(value: Any) -> Any:
    """The same with whole numbers as such: 8 and 8.0 ask for the same."""
    if isinstance(value, Mapping):
        return {k: _number(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_number(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _drop(content: dict[str, Any], path: str, only: Any = ...) -> None:
    """Take out what is at a dotted path, whatever it is or if it is `only` that."""
    *groups, key = path.split(".")
    for group in groups:
        content = content.get(group, {})
    if key in content and only in (..., content[key]):
        del content[key]


def _source(group: str, node: Any) -> str | None:
    """A digest of the file in which an option is written that is not this package's."""
    try:
        if written(path_of(group, node)):
            return None
        target = target_of(group, node)
    except UserError:  # `check` will say what is wrong with it
        return None
    if str(getattr(target, "__module__", "")).partition(".")[0] == fedpriv.__name__:
        return None
    try:
        return digest(Path(inspect.getfile(target)).read_bytes())
    except (TypeError, OSError):  # built in, or made in a session: there is no file
        return None


@cache
def code() -> str:
    """A digest of this package's own source."""
    root = Path(fedpriv.__file__).parent
    return digest(
        *(b for p in sorted(root.rglob("*.py")) for b in (str(p.relative_to(root)).encode(), p.read_bytes()))
    )


# -- data


def of_files(dataset: Any, data_dir: Path) -> str:
    """Names, sizes and times of what a data set would read: while it is the same the data need no look.

    Empty where that says nothing: for a folder, a data set that does not name its files, or absent ones.
    """
    listed = getattr(dataset, "on_disk", None)
    paths = [Path(path) for path, _ in listed(data_dir)] if listed else []
    if not paths or not all(path.is_file() for path in paths):
        return ""
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return digest(json.dumps(states).encode())


def absent(dataset: Any, data_dir: Path) -> bool:
    """Whether a data set has files, and not here."""
    listed = getattr(dataset, "on_disk", None)
    return listed is not None and bool(dataset.parts) and not listed(data_dir)


@dataclass(frozen=True)
class Identity:
    """Everything a run's folder keeps of what it is, in identity.txt."""

    config: str
    data: str
    files: str = ""

    def __str__(self) -> str:
        return "".join(f"{f.name} {getattr(self, f.name)}\n" for f in fields(self))

    @classmethod
    def read(cls, text: str) -> "Identity":
        lines = dict(line.partition(" ")[::2] for line in text.splitlines())
        return cls(*(lines.get(f.name, "") for f in fields(cls)))
