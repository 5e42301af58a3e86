"""FedPD (anonymous, under review 2022): privacy distillation, then local training on own and shared samples.

Before round 0 the clients distil (distil.py) and send x_p, their samples' protected features, once
(release.py). In every round a client draws a part of that set of its own size, balanced over the classes, and
minimises eq. 3, the mean loss of its own batch plus the mean loss of a shared batch. Everything else is the
run's own: any algorithm, DP variant, partition and model. Under DP-SGD shared samples are not clipped, for
what x_p costs is in the ledger already.

Guarantee: labels, and with them everybody's numbers of samples, are sent as they are, so every statement is
about neighbours that agree in them; the run's neighbouring relation says so. Releasing x_p once is DP with an
epsilon that is computed over all pixels jointly and is large at the paper's noise; noise drawn in
floats does not reach over the range of a pixel there, so nothing is called provable. The distiller's and the
classifier's updates are sent without any protection unless ldp or cdp protects the training: then they are
protected alike (protection.py), and distilling, releasing and training compose. The ablations raw and noise
distil nothing.
"""

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import nn

from fedpriv.config.limits import Within
from fedpriv.engine import batches
from fedpriv.engine.data import ClientData
from fedpriv.errors import UserError, positive
from fedpriv.models.parts import normalises_batches
from fedpriv.privacy.ledger import Release
from fedpriv.randomness.source import Source, generator, key_of, seed_for
from fedpriv.rounds.setting import Round
from fedpriv.rounds.trainer import Trainer
from fedpriv.stages.base import Origin, Stage
from fedpriv.stages.fedpd import cache
from fedpriv.stages.fedpd.distil import distil, samples_used
from fedpriv.stages.fedpd.losses import Distillation, last_layer
from fedpriv.stages.fedpd.noise import Kind, Noise, charge, epsilon, flaw
from fedpriv.stages.fedpd.protection import Open, protection_of, setting_of
from fedpriv.stages.fedpd.release import WHAT, Content, distances, released
from fedpriv.stages.fedpd.share import Shared, in_order
from fedpriv.stages.fedpd.vae import Distiller

NETWORKS = "the distiller's and the auxiliary classifier's updates"
FLAW = f"{NETWORKS} are sent without any privacy before round 0"
LOSSES = "the distillation's losses in summary.json: computed on raw data, not private"
LABELS = (
    "the labels in the shared set, and so how many samples of each class a client has: sent as they are, and "
    "protected by nothing"
)
PUBLIC = "labels and numbers of samples being public: what is removed leaves an empty row and its label"
PUBLIC_REPLACED = "labels and numbers of samples being public: what is replaced keeps its label"


class FedPD(Stage):
    def __init__(
        self,
        *,
        share: Content = "features",
        noise: Kind = "gaussian",
        noise_std: float | None = 0.15,
        noise_variance: float | None = None,
        clip: float | None = None,
        distil_noise_std: float | None = None,
        distil_epsilon: float | None = None,
        distil_clip: float = 1.0,
        view: Literal["optimisation", "generalisation"] = "optimisation",
        entropy: Literal["mse", "variance"] = "mse",
        rounds: Annotated[int, Within(least=1, most=10_000)] = 15,
        sample_rate: float = 1.0,
        local_epochs: int = 1,
        batch_size: int = 64,
        lr: float = 1e-3,
        latent: int = 2048,
        data_fraction: float = 1.0,
        mixup: float = 1.0,
        weight_entropy: float = 5.0,
        weight_features: float = 2.0,
        weight_raw: float = 0.4,
        weight_kl: float = 0.005,
        weight_distance: float = 1.0,
        cache: bool = True,
    ):
        std = _deviation(share, noise_std, noise_variance)
        positive("stage", clip=clip, lr=lr, latent=latent, rounds=rounds, batch_size=batch_size)
        positive("stage", local_epochs=local_epochs, data_fraction=data_fraction, sample_rate=sample_rate)
        positive("stage", distil_epsilon=distil_epsilon, distil_clip=distil_clip)
        for name, value in (("data_fraction", data_fraction), ("sample_rate", sample_rate)):
            if value > 1:
                raise UserError(f"stage.{name}={value:g}: must be at most 1")
        least_zero = {"mixup": mixup, "distil_noise_std": distil_noise_std, "weight_kl": weight_kl}
        least_zero |= {"weight_entropy": weight_entropy, "weight_distance": weight_distance}
        least_zero |= {"weight_features": weight_features, "weight_raw": weight_raw}
        for name, given in least_zero.items():
            if given is not None and not 0 <= given < math.inf:
                raise UserError(f"stage.{name}={given:g}: must be finite and not negative")
        if weight_features + weight_raw == 0:
            raise UserError(
                "stage.weight_features and stage.weight_raw are both 0: nothing would train the classifier; "
                "raise one of them"
            )
        # Bare features are distilled as noisy ones are, so that one distillation serves both.
        self.noise = Noise(noise, 0.0 if share == "bare" else std)
        self.share, self.clip, self.latent, self.cache = share, clip, latent, cache
        self.distil_epsilon, self.distil_clip = distil_epsilon, distil_clip
        self.recipe = Distillation(
            view=view,
            entropy=entropy,
            noise=Noise(noise, std if distil_noise_std is None else distil_noise_std),
            rounds=rounds,
            sample_rate=sample_rate,
            local_epochs=local_epochs,
            batch_size=batch_size,
            lr=lr,
            data_fraction=data_fraction,
            mixup=mixup,
            weight_entropy=weight_entropy,
            weight_features=weight_features,
            weight_raw=weight_raw,
            weight_kl=weight_kl,
            weight_distance=weight_distance,
        )
        self.distils = share in ("features", "bare")
        self.distiller: Distiller | None = None
        self.classifier: nn.Module | None = None
        self._facts: dict[str, Any] = {}

    # -- before round 0

    def announce(self, trainer: Trainer, origin: Origin) -> list[str]:
        low, high = public_range(origin)
        setting, protects = trainer.setting, trainer.mechanism.facts
        if self.distils:
            self.protection = self._protection(trainer, origin)
        replaced, emptied = distances(self.share, low, high, origin.data.shape, self.clip)
        rows = int(setting.sizes.max()) if protects.unit == "client" else 1
        # The charge is for the training's neighbours; what is removed leaves an empty row: sizes are public.
        moved, how = (replaced, "replaced") if protects.replaces else (emptied, "emptied")
        jointly = moved.times(rows)
        open_ = (FLAW,) if self.distils and not self.protection.private else ()
        bounds = [
            f"[{a:g}, {b:g}]" for a, b in zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)
        ]
        trainer.ledger.release(
            Release(
                what=f"the shared set ({WHAT[self.share]})",
                relation=f"replace one sample, {PUBLIC_REPLACED}",
                public=PUBLIC_REPLACED if protects.replaces else PUBLIC,
                epsilon=epsilon(self.noise, replaced, setting.delta),
                charges=(charge(self.noise, jointly) if protects.unit != "none" else (),),
                flaws=(*open_, *flaw(self.noise, moved, rows * math.prod(origin.data.shape), setting.delta)),
                not_covered=(LABELS,),
                details={
                    "noise_kind": self.noise.kind,
                    "noise_std": self.noise.std,
                    "noise_variance": self.noise.std**2,
                    "clip_norm_of_shared": self.clip,
                    "range_of_inputs": ", ".join(dict.fromkeys(bounds)),
                    "sensitivity_l2": replaced.l2,
                    "sensitivity_l1": replaced.l1,
                    "composed_with_training_as": f"{rows} rows {how}, of joint L2 norm {jointly.l2:.6g}; "
                    "sizes are public",
                },
            )
        )
        remarks = self._announce_distilling(trainer) if self.distils and self.protection.private else []
        held = torch.zeros(origin.data.classes, dtype=torch.bool)
        held[trainer.train.y[trainer.train.all_owned].cpu()] = True
        missing = torch.nonzero(~held)[:, 0].tolist()
        if missing:
            remarks.append(
                f"stage=fedpd: no client holds class {', '.join(map(str, missing))}; shares are balanced "
                f"over the other {int(held.sum())} classes"
            )
        return remarks

    def _protection(self, trainer: Trainer, origin: Origin) -> Open:
        sizes = [samples_used(int(n), self.recipe.data_fraction) for n in trainer.setting.sizes]
        with torch.random.fork_rng(devices=[]):
            classifier = origin.model()
            networks = (Distiller(origin.data.shape, *public_range(origin), self.latent), classifier)
        made = protection_of(
            self.recipe,
            setting_of(self.recipe, sizes, networks, trainer.setting, self.distil_epsilon),
            trainer.mechanism.facts,
            public=Source(key_of(origin.seed, "distil")),
            private=trainer.source.of("distil"),
            clip=self.distil_clip,
        )
        if made.private and normalises_batches(classifier):
            raise UserError(
                "model.norm=batch: the auxiliary classifier's batch statistics would be sent without "
                "noise; use model.norm=group or model.norm=none"
            )
        return made

    def _announce_distilling(self, trainer: Trainer) -> list[str]:
        """Enter the distillation's own updates, protected as the training's are."""
        ledger, charges = trainer.ledger, self.protection.charges()
        ledger.release(
            Release(
                what=NETWORKS,
                relation=ledger.guarantee.relation,
                epsilon=max(ledger.accountant.epsilon((), 0, ledger.delta, c) for c in set(charges)),
                charges=charges,
                not_covered=(LOSSES,),
                details=self.protection.facts(),
            )
        )
        if self.recipe.mixup and trainer.mechanism.facts.per_sample:
            return ["stage=fedpd: no mixup while distilling: this dp_variant clips single samples"]
        return []

    def prepare(self, trainer: Trainer, origin: Origin) -> None:
        data, self._setting, self._seed = trainer.train, trainer.setting, trainer.seed
        if self.distils:
            self._distilled(trainer, origin)
        noise = trainer.source.of("release")
        x, y = released(data, self.share, self.distiller, self.noise, self.clip, noise)
        trainer.train = replace(data, shared=(x, y))
        self._shared = Shared(y, origin.data.classes)
        self._facts |= {"share": self.share, "shared_samples": len(y), "shared_bytes": 4 * x.numel()}

    def _distilled(self, trainer: Trainer, origin: Origin) -> None:
        """Both networks, from the cache or trained now."""
        device, dtype = trainer.setting.device, trainer.theta.dtype
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(origin.seed, "distil init"))
            distiller = Distiller(origin.data.shape, *public_range(origin), self.latent)
            classifier = origin.model()
        last_layer(classifier)
        self.distiller = distiller.to(device, dtype)
        self.classifier = classifier.to(device, dtype)
        key = cache.fingerprint(self.protection, self.distiller, self.classifier, trainer.train)
        ranks = trainer.ranks
        kept = ranks.from_first(cache.load(key) if self.cache and ranks.rank == 0 else None)
        if kept is None:
            networks, workers = (self.distiller, self.classifier), trainer.engine.workers
            history = distil(self.protection, *networks, trainer.train, workers, ranks)
            states = {"distiller": self.distiller.state_dict(), "classifier": self.classifier.state_dict()}
            if self.cache and ranks.rank == 0:
                cache.save(key, {**states, "history": history})
        else:
            self.distiller.load_state_dict(kept["distiller"])
            self.classifier.load_state_dict(kept["classifier"])
            history = kept["history"]
        self.distiller.eval().requires_grad_(False)
        self.classifier.eval().requires_grad_(False)
        source = "made now" if kept is None else "from the cache"
        self._facts |= {"distillation": key, "distillation_is": source, **history}

    # -- every round

    def mix(self, plan: batches.Plan, round_: Round, data: ClientData) -> tuple[batches.Plan, ClientData]:
        """Own batches as they are, and behind them passes over a fresh share, which follows from the round's
        and the client's number, whoever else takes part."""
        sizes, batch_size = torch.as_tensor(round_.sizes), self._setting.batch_size
        behind, passes = in_order(sizes, batch_size, plan.active)
        owned = torch.zeros(len(data.size), int(sizes.max()) * (1 + passes), dtype=torch.int64)
        own = data.owned[round_.clients].cpu()
        for position, (client, size) in enumerate(zip(round_.clients.tolist(), sizes.tolist(), strict=True)):
            draws = generator(self._seed, "share", round_.number, client)
            share = len(data.y) + self._shared.draw(size, draws)
            orders = [torch.randperm(size, generator=draws) for _ in range(passes)]
            owned[client, :size] = own[position, :size]
            owned[client, size : size * (1 + passes)] = share[torch.cat(orders)]
        joined = batches.joined(plan, behind, sizes)
        return joined, replace(data, owned=owned.to(data.owned.device))

    def downlink(self, round_: Round) -> int:
        """A share is sent with the model."""
        numbers: int = self._facts["shared_bytes"] // self._facts["shared_samples"]
        return int(round_.sizes.sum()) * numbers

    def summary(self) -> dict[str, Any]:
        return {"stage": self._facts}


def _deviation(share: Content, std: float | None, variance: float | None) -> float:
    """The noise's standard deviation from the one of the two that is given."""
    if (std is None) == (variance is None):
        raise UserError(
            f"stage.noise_std={std} and stage.noise_variance={variance}: give one and set the other to null"
        )
    value = std if variance is None else variance
    name = "noise_std" if variance is None else "noise_variance"
    assert value is not None
    hint = (
        "with stage.share=bare it is the noise while distilling; stage.distil_noise_std=0 distils without"
        if share == "bare"
        else "stage.share=bare shares features without noise, and its epsilon is infinite"
    )
    positive("stage", f"must be positive; {hint}", **{name: value})
    return value if variance is None else value**0.5


def public_range(origin: Origin) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and largest input there can be, by channel, [c, 1, 1]: from pixels, not from data."""
    data = origin.data
    if len(data.shape) != 3 or data.x_train.dtype != torch.uint8:
        raise UserError(
            f"stage=fedpd: {data.name} has samples of shape {data.shape}, and only the range of images is "
            "public; use a dataset of images"
        )
    low, high = (data.prepare(torch.full((data.shape[0], 1, 1), v, dtype=torch.uint8)) for v in (0, 255))
    return low, high
