"""Give every committed row the identity of its run in place of the hash of its config. Run once, then deleted.

A row is moved only if the config its overrides make today still has the old hash that the row was filed
under. The data of these runs were not fingerprinted: that column stays empty.
"""

import csv
import hashlib
import inspect
import json
import sys
from dataclasses import fields
from pathlib import Path

from omegaconf import OmegaConf

from fedpriv import identity
from fedpriv.config import GROUPS, Settings, target_of
from fedpriv.files import write_atomically
from fedpriv.reproduce import plan, recipe, rows

WHERE = ("data_dir", "device", "threads", "logger", "checkpoint", "resume", "target")


def old_hash(cfg) -> str:
    content = {}
    for f in fields(Settings):
        if f.name in WHERE:
            continue
        value = cfg[f.name]
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        if f.name in GROUPS:
            known = inspect.signature(target_of(f.name, value)).parameters
            content[f.name] = {k: v for k, v in value.items() if k not in known or v != known[k].default}
        elif value != (f.default_factory() if callable(f.default_factory) else f.default):
            content[f.name] = value
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def main() -> int:
    moved, left, new = 0, 0, {}
    for name in recipe.names():
        own = recipe.load(name)
        path = rows.path_of(own)
        if not path.exists():
            continue
        with open(path, newline="") as file:
            lines = list(csv.DictReader(file))
        for line in lines:
            config = plan.composed(line["overrides"].split())
            before = line.pop("hash")
            if old_hash(config) != before:
                print(f"{path.name}: {before} is not what its overrides make")
                left += 1
                continue
            line["identity"], line["data"] = identity.of_config(config, "cpu"), ""
            new.setdefault(line["identity"], set()).add(before)
            moved += 1
        columns = ["identity", "seed", "scale", *own.axes, *rows.MEASURED, rows.CURVE, *rows.ABOUT]
        if not left and "--write" in sys.argv:
            text = rows._csv(columns, [{c: line.get(c) or "" for c in columns} for line in lines])
            write_atomically(Path(path), text.encode())
    clashes = sum(len(hashes) > 1 for hashes in new.values())
    print(f"{moved} rows of {len(new)} runs moved, {left} not, {clashes} identities of two hashes")
    return left + clashes


sys.exit(main())
