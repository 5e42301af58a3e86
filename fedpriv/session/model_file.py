"""model.pt: what a run trained, as a plain state dict that `torch.load(weights_only=True)` opens.

It holds the network as the server knows it. What stays at a client's home (a personal transform, FedBN's
norms, batch statistics) has no common value: there it is as it was before training, or under dp=none, where
nothing is promised, the clients' mean. personal.pt, kept with personal=true, has every client's own: nothing
about that file is private.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import UserError
from fedpriv.files import atomically

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.building import Run
    from fedpriv.rounds.store import ClientStore
    from fedpriv.rounds.trainer import Trainer

MODEL, PERSONAL = "model.pt", "personal.pt"


def write(run: "Run", store: "ClientStore", folder: Path, *, personal: bool) -> None:
    """model.pt, and personal.pt if it is asked for and there is anything in it; `store` has all clients."""
    import torch

    state = _common(run, store)
    with atomically(folder / MODEL) as file:
        torch.save(state, file)
    (folder / PERSONAL).unlink(missing_ok=True)
    if personal and (own := _own(run.trainer, store)):
        with atomically(folder / PERSONAL) as file:
            torch.save(own, file)


def read(path: Path) -> dict[str, "Tensor"]:
    import torch

    if not path.is_file():
        raise UserError(
            f"{path}: no such file; a run that is finished keeps model.pt, with personal=true personal.pt too"
        )
    try:
        content: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as problem:  # whatever a damaged archive makes torch raise
        reason = type(problem).__name__
        raise UserError(f"{path}: damaged ({reason}); make it again with resume=false") from problem
    return content


def of_client(own: dict[str, "Tensor"], client: int) -> dict[str, "Tensor"]:
    """One client's part of what personal.pt holds."""
    clients = len(next(iter(own.values())))
    if not 0 <= client < clients:
        raise UserError(f"client={client}: choose from 0 to {clients - 1}")
    return {name: values[client] for name, values in own.items()}


def _common(run: "Run", store: "ClientStore") -> dict[str, "Tensor"]:
    import torch

    trainer, network = run.trainer, run.network
    layout = trainer.setting.layout
    state = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
    mean = trainer.ledger.guarantee.unit == "none"  # nothing is promised that a mean could break
    home = store["home"].mean(0) if mean else layout.flatten(network)[layout.sent :].to(trainer.theta)
    row = torch.cat([trainer.theta, home])
    state |= {name: _plain(value[0]) for name, value in layout.views(row[None]).items()}
    if mean:
        statistics = store["statistics"].mean(0, keepdim=True)
        state |= {name: _plain(value[0]) for name, value in trainer.engine.buffers.views(statistics).items()}
    return {name: value.reshape(network.state_dict()[name].shape) for name, value in state.items()}


def _own(trainer: "Trainer", store: "ClientStore") -> dict[str, "Tensor"]:
    """What differs from client to client, [clients, *shape] each."""
    import torch

    layout = trainer.setting.layout
    clients = torch.arange(trainer.setting.clients, device=trainer.theta.device)
    start = trainer.theta.expand(len(clients), -1)
    if trainer.algorithm.facts.personal:
        start = trainer.algorithm.start(trainer.theta, clients, store)
    views = layout.views(torch.cat([start, store["home"]], 1))
    names = {e.name for e in layout.entries if e.stop > layout.sent or trainer.algorithm.facts.personal}
    own = {name: _plain(value) for name, value in views.items() if name in names}
    return own | {n: _plain(v) for n, v in trainer.engine.buffers.views(store["statistics"]).items()}


def _plain(value: Any) -> "Tensor":
    """A tensor of its own, on the CPU: a view would save all it is a view of."""
    copied: Tensor = value.detach().cpu().clone()
    return copied
