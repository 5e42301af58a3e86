"""Arrays that somebody else made: what is wrong with them in one line, and their division into two parts."""

import numpy as np

from fedpriv.errors import UserError

Arrays = dict[str, np.ndarray]
PARTS = ("train", "test")
CLASSES = 100_000
LARGEST = 1e15  # of a number: what is squared on the way must fit into float32
_SEED = 0  # of the division, which is a part of the data and not of a run


def divided(arrays: Arrays, share: float, where: str) -> Arrays:
    """x, y and perhaps client as train and test: of every client, or else of every class, a fixed part."""
    x, y, client = arrays["x"], arrays["y"], arrays.get("client")
    wrong = _wrong_samples(x) or _wrong_labels(y, len(x))
    if not wrong and client is not None and client.shape != y.shape:
        wrong = f"client has the shape {list(client.shape)}, y {list(y.shape)}"
    if wrong:
        raise UserError(f"{where}: {wrong.replace('_PART', '')}; write it anew")
    _, group = np.unique(y if client is None else client, return_inverse=True)
    order = np.random.default_rng(_SEED).permutation(len(x))
    rank, size = np.empty(len(x), dtype=np.int64), np.bincount(group)
    for one in range(len(size)):
        members = order[group[order] == one]
        rank[members] = np.arange(len(members))
    tested = rank < np.floor(size * share + 0.5).clip(max=size - 1)[group]
    if not tested.any():
        raise UserError(f"{where}: too few samples for a test set of {share:g} of them; give one of its own")
    return {f"{n}_{p}": v[tested == (p == "test")] for n, v in arrays.items() for p in PARTS}


def checked(arrays: Arrays, where: str) -> tuple[Arrays, Arrays, Arrays]:
    """Samples, labels and owners by part, as they are stored; or one line that says what is wrong."""
    x, y = ({p: arrays[f"{kind}_{p}"] for p in PARTS} for kind in "xy")
    owners = {p: arrays[f"client_{p}"] for p in PARTS if f"client_{p}" in arrays}
    for part in PARTS:
        wrong = _wrong_samples(x[part]) or _wrong_labels(y[part], len(x[part]))
        if not wrong and part in owners and owners[part].shape != y[part].shape:
            wrong = f"client_{part} has the shape {list(owners[part].shape)}, y_{part} {list(y[part].shape)}"
        if wrong:
            raise UserError(f"{where}: {wrong.replace('PART', part)}; write it anew")
    if x["train"].shape[1:] != x["test"].shape[1:]:
        shapes = " and ".join(f"x_{p} {list(x[p].shape[1:])}" for p in PARTS)
        raise UserError(f"{where}: samples must have one shape, not {shapes}; write it anew")
    if owners and "train" not in owners:
        raise UserError(f"{where}: has client_test but no client_train; write it anew")
    pixels = all(x[part].dtype == np.uint8 for part in PARTS)
    for part in PARTS:
        x[part] = np.ascontiguousarray(x[part] if pixels else x[part].astype(np.float32))
        x[part] = x[part][:, None] if x[part].ndim == 3 else x[part]  # [N, H, W] -> [N, 1, H, W]
        y[part] = y[part].astype(np.int64)
    return x, y, _numbered(owners, where)


def _wrong_samples(x: np.ndarray) -> str:
    if x.ndim not in (2, 3, 4):
        return f"x_PART must be [N, d], [N, H, W] or [N, C, H, W], not {list(x.shape)}"
    if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] > 4:
        return f"x_PART is {list(x.shape)}: the channels must come first, [N, C, H, W]"
    if 0 in x.shape:
        return f"x_PART is empty: {list(x.shape)}"
    if x.dtype.kind not in "fiub":
        return f"x_PART holds {x.dtype}, not real numbers"
    bad = ~np.isfinite(x) if x.dtype.kind == "f" else np.zeros(1, dtype=bool)
    if bad.any() or float(np.abs(x.astype(np.float64)).max()) > LARGEST:
        which = f"sample {int(np.argwhere(bad)[0][0])} " if bad.any() else ""
        return f"x_PART {which}holds what is no finite number, or beyond {LARGEST:g}"
    return ""


def _wrong_labels(y: np.ndarray, samples: int) -> str:
    if y.shape != (samples,):
        return f"y_PART must have one label for each of {samples} samples, not the shape {list(y.shape)}"
    if y.dtype.kind not in "fiub":
        first = next((v for v in y.tolist() if not isinstance(v, int | float)), y[0])
        return f"y_PART holds texts such as {str(first)[:40]!r}; number the classes from 0"
    bad = ~np.isfinite(y) if y.dtype.kind == "f" else np.zeros(samples, dtype=bool)
    bad |= y != np.floor(np.where(bad, 0.5, y))
    if bad.any():
        row = int(np.argmax(bad))
        return f"y_PART holds labels that are no whole numbers, such as {y[row]:g} of sample {row}"
    if y.min() < 0:
        return f"y_PART has the label {int(y.min())}; number the classes from 0"
    if y.max() >= CLASSES:
        return f"y_PART has a label {int(y.max())}; there can be {CLASSES:,} classes, numbered from 0"
    return ""


def _numbered(owners: Arrays, where: str) -> Arrays:
    """Whose each sample is, from 0 on in the order of the names; -1: of nobody who has training samples."""
    if not owners:
        return {}
    for part, names in owners.items():
        empty = [n for n, name in enumerate(names.tolist()) if name is None or name != name]
        if empty:
            raise UserError(f"{where}: client_{part} is empty for sample {empty[0]}; name its client")
    texts = {part: names.astype(str) for part, names in owners.items()}
    numeric = all(names.dtype.kind in "iub" for names in owners.values())
    known = sorted(set(texts["train"].tolist()), key=int if numeric else str)
    number = {name: n for n, name in enumerate(known)}
    return {
        part: np.array([number.get(name, -1) for name in names.tolist()], dtype=np.int64)
        for part, names in texts.items()
    }
