"""`audit inversion`: rebuild a training image from what a client with one sample would release in one step.

The attacker knows the model, the label and everybody else's part (Zhu et al. 2019; Geiping et al. 2020):
it looks for the image whose gradient points as the release does, min 1 - cos(gradient(x), release) +
tv TV(x), by Adam. Twice: at the run's noise and with none, so that one sees what noise does. Under
stage=fedpd the shared features are inverted as well (fedpriv/stages/fedpd/inversion.py).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedpriv.audit.finding import Result
from fedpriv.audit.noise import quiet
from fedpriv.audit.taps import Bench
from fedpriv.engine.batches import Plan
from fedpriv.engine.work import Work
from fedpriv.parts.making import make
from fedpriv.randomness.source import seed_for
from fedpriv.rounds.setting import Round
from fedpriv.session.screen import Notes
from fedpriv.stages.fedpd.inversion import total_variation
from fedpriv.stages.fedpd.quality import psnr, ssim

IMAGES, STEPS = 4, 200
_TV = 1e-2


class _Alone:
    """One client's message, and nothing from the others, whom the attacker knows."""

    def __init__(self, client: int, message: Tensor):
        self.client, self.message = client, message

    def __call__(self, made: Tensor, round_: Round) -> Tensor:
        out = torch.zeros_like(made)
        for position in np.flatnonzero(round_.clients == self.client):
            out[int(position), : len(self.message)] = self.message.to(made)
        return out


def _one_sample(bench: Bench, work: Work, data: Any, client: int, place: int) -> Tensor:
    """What the client's weights move by in one step on one sample, as the mechanism has it train, [D]."""
    at = work.clients.tolist().index(client)
    plan = Plan(torch.tensor([[[place]]]), torch.tensor([[1]]), torch.ones(1, 1, dtype=torch.bool))
    here = torch.tensor([at])
    private = None if work.private is None else replace(work.private, noise_std=work.private.noise_std[here])
    one = replace(
        work,
        rows=work.rows[here].clone(),
        buffers=work.buffers[here].clone(),
        clients=work.clients[here],
        plan=plan,
        lr=[1.0],
        private=private,
        correction=None,
        after_step=None,
        momentum=0.0,
        weight_decay=0.0,
        home_lr=None,
    )
    bench.trainer.engine.train(one, data)
    return (one.rows - work.rows[here])[0, : bench.trainer.setting.layout.sent]


def released(bench: Bench, client: int, place: int) -> Tensor | None:
    """The update the observer sees of a round in which one client has one sample, [D]; None: it stays out."""
    bench.reset()
    heard = bench.round(able=bench.everyone(), train=False)
    if client not in heard.clients:
        return None
    move = _one_sample(bench, heard.works[-1], heard.data[-1], client, place)
    bench.reset()
    update = bench.round(messages=_Alone(client, move), able=bench.everyone(), train=False).update
    return update


def _network(bench: Bench) -> Any:
    """The model as broadcast, in plain torch."""
    data = bench.run.data
    facts = {"shape": data.shape, "classes": data.classes, "vocabulary": data.vocabulary}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(bench.seed, "init"))
        make(bench.cfg, "transform", **facts)
        network = make(bench.cfg, "model", **facts)
    named, layout = dict(network.named_parameters()), bench.trainer.setting.layout
    with torch.no_grad():
        for entry in layout.sent_entries:
            name = entry.name.removeprefix("model.")
            named[name].copy_(bench.trainer.theta[entry.start : entry.stop].view(entry.shape))
    order = [named[e.name.removeprefix("model.")] for e in layout.sent_entries]
    return network.eval(), order


def invert(bench: Bench, release: Tensor, label: Tensor, low: float, high: float) -> Tensor:
    """The image [c, h, w] whose gradient points against the release."""
    bench.reset()
    network, parameters = _network(bench)
    wanted = -release / release.norm().clamp(min=1e-30)
    shape = bench.run.data.shape
    draw = torch.Generator().manual_seed(bench.seed)
    x = (low + (high - low) * torch.rand(1, *shape, generator=draw)).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05 * (high - low))
    for _ in range(STEPS):
        loss = F.cross_entropy(network(x), label[None])
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([g.flatten() for g in grads])
        cost = 1 - (flat @ wanted) / flat.norm().clamp(min=1e-12) + _TV * total_variation(x).sum()
        (x.grad,) = torch.autograd.grad(cost, x)
        optimiser.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach()[0]


def audit(bench: Bench, images: int = IMAGES) -> tuple[Result, dict[str, list[np.ndarray]]]:
    """The result, and the pictures a row each: raw training samples."""
    kind, data = "inversion", bench.run.data
    if len(data.shape) != 3:
        shape = list(data.shape)
        return Result(kind, f"samples of shape {shape} are no images: there is no picture to rebuild"), {}
    if not all(e.name.startswith("model.") for e in bench.trainer.setting.layout.sent_entries):
        return Result(kind, "what is sent is no model of one's own: this attack does not apply"), {}
    train = bench.trainer.train
    low, high = float(train.x.min()), float(train.x.max())
    if not train.x.is_floating_point():
        low, high = (float(data.prepare(train.x.new_tensor([v]).view(1, 1, 1, 1)).mean()) for v in (0, 255))
    bench.reset()
    there = bench.round(able=bench.everyone(), train=False).clients[:images]
    pictures: dict[str, list[np.ndarray]] = {"sample": [], "no noise": [], "the run's noise": []}
    rows = []
    notes = Notes("audit inversion: image", len(there))
    for number, client in enumerate(there.tolist()):
        sample, label = train.take(train.owned[client, :1])
        raw = sample[0].cpu().numpy()
        pictures["sample"].append(raw)
        for name, silent in (("no noise", True), ("the run's noise", False)):
            if silent:
                with quiet():
                    release = released(bench, client, 0)
            else:
                release = released(bench, client, 0)
            assert release is not None
            guess = invert(bench, release.float(), label[0], low, high).numpy()
            pictures[name].append(guess)
            rows.append(
                {
                    "client": client,
                    "from": name,
                    "psnr": psnr(raw, guess, high - low),
                    "ssim": ssim(raw, guess, high - low),
                }
            )
        notes.show(number + 1)
    if not rows:
        return Result(kind, "nobody took part in the round that was looked at"), {}
    means = {
        name: {k: float(np.mean([r[k] for r in rows if r["from"] == name])) for k in ("psnr", "ssim")}
        for name in ("no noise", "the run's noise")
    }
    says = "an image rebuilt from one step on one sample: " + ", ".join(
        f"at {name} PSNR {m['psnr']:.1f} dB and SSIM {m['ssim']:.2f}" for name, m in means.items()
    )
    return Result(kind, says, details={"images": rows, "means": means}), pictures


def of_fedpd(bench: Bench, images: int = IMAGES) -> tuple[Result, dict[str, list[np.ndarray]]] | None:
    """FedPD's own: its shared features, by an attacker who knows the distiller."""
    from fedpriv.stages.fedpd.command import attack
    from fedpriv.stages.fedpd.stage import FedPD

    stage = bench.trainer.stage
    if not isinstance(stage, FedPD) or not stage.distils or stage.distiller is None:
        return None
    clients = list(range(min(images, bench.trainer.setting.clients)))
    rows, pictures, _ = attack(bench.trainer, stage, clients, [0] * len(clients), STEPS)
    means = {
        name: {k: float(np.mean([r[k] for r in rows if r["from"] == name])) for k in ("psnr", "ssim")}
        for name in ("x_g", "x_p")
    }
    says = "an image rebuilt from shared features: " + ", ".join(
        f"from {name} PSNR {m['psnr']:.1f} dB and SSIM {m['ssim']:.2f}" for name, m in means.items()
    )
    return Result("inversion of shared features", says, details={"images": rows, "means": means}), pictures
