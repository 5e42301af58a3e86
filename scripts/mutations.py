"""Faults put into a copy of the code, one at a time: do the tests notice? `make mutations`.

Each fault is one that would make a run less private than its ledger says. A fault is found by its old text
anywhere in the package, not by a path, so that it survives a move; text that is gone or stands in two places
is "stale", an error like a fault that nobody notices. What counts as caught is a test that fails, not one
that cannot be run. First all the tests have to pass in the copy without a fault.

  python scripts/mutations.py [--only NAME ...] [--list] [--audit]

With --audit no test is asked but `fedpriv audit` (sensitivity and mechanism) on a small run: does it flag the
fault? Faults that change nothing of what is released are left out, each with its reason.
"""

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, CONF = "fedpriv", "conf"
LEFT_BEHIND = (".git", ".venv", ".*_cache", "outputs", "build", "*.egg-info")
HEAVY = ("torch", "opacus", "dp_accounting", "hydra", "numba", "pandas", "scipy.stats", "matplotlib")
LIMIT, ALL = 300.0, 1800.0  # seconds of one fault's tests, and of all of them without a fault


@dataclass(frozen=True)
class Fault:
    name: str
    edits: dict[str, str]  # old text, which occurs exactly once in the package, and what replaces it
    tests: tuple[str, ...]  # the fewest that should notice, as pytest names them
    compiled: bool = False  # whether machine code that outlives a process is made of it


_SECONDS = count()  # no two edits of a file have the same time


class Stale(Exception):
    """A fault whose text is no longer there, or not once."""


DRAWS, RANDOM = (f"tests/randomness/test_{n}.py::test_" for n in ("private_draws", "randomness"))
MECHANISMS, DDP, LDPFL = (f"tests/mechanisms/test_{n}.py::test_" for n in ("mechanisms", "ddp", "ldpfl"))
FEDPD, ABSENT = (f"tests/stages/test_{n}.py::test_" for n in ("fedpd", "fedpd_absent"))
PRIVACY, RUN = "tests/privacy/test_privacy.py::test_", "tests/session/test_run.py::test_"
CORRELATED, UPDATE = (f"tests/mechanisms/test_{n}.py::test_" for n in ("cdp_correlated", "ldp_update"))
CHAIN = "tests/engine/test_chain.py::test_"
MATRICES, SEARCH = "tests/correlation/test_matrices.py::test_", "tests/privacy/test_search.py::test_"

MISSING = (f"{DRAWS}a_missing_sample_moves_the_clipped_sum_by_one_clip_at_most",)
LOCAL_NOISE = (f"{DRAWS}every_client_step_and_weight_has_its_own_noise",)
SOURCES = (f"{DRAWS}every_source_follows_from_the_secret_and_the_round",)
SECRET = f"{DRAWS}a_secret_key_decides_noise_batches_and_who_takes_part"
FROM_SEED = 'Source(self.seed.to_bytes(32, "little"))'  # of the config, which is public

# Of --audit: the run in which a fault shows, by the beginning of its name; the default is dp=ldp. A sentence
# says why what is released stays as it is, so that no audit of a run can see the fault.
SMALL = ("model=logreg", "clients=5", "rounds=3", "batch_size=16", "threads=1")
SAMPLED, MASKED = ("dp=cdp", "sample_rate=0.5"), ("dp=ddp", "upload.protocol=masked", "sample_rate=0.5")
FEDPD_SMALL = ("stage=fedpd", "stage.rounds=1", "stage.latent=8", "stage.cache=false")
UNEQUAL = ("budget=list", "budget.epsilons=[8,8,8,30,30]")  # some can afford one round, others all
STAGE, SHORT = (
    (*FEDPD_SMALL, "dp=ldp"),
    ("dp=ldp", "dp_variant.noise=uniform", "dp_variant.reference=10", *UNEQUAL),
)
TWICE = ("clients=8", "rounds=8", "participations=2", "separation=4", "sample_rate=0.25")
SHARED_NOISE = ("dp=cdp_correlated", *TWICE)
AUDITED: dict[str, tuple[str, ...] | str] = {
    "cdp draws a fixed": SAMPLED,
    "clients join more often": SAMPLED,
    "a sum of clients is divided": SAMPLED,
    "the server's noise": SAMPLED,
    "who takes part follows": SAMPLED,
    "runs of other seeds": "the identity, which is in the key too, holds the seed",
    "a short key file": "a file on the disk: what an attacker of the disk may guess, not what is released",
    "everybody may read": "a file on the disk: who may read it, not what is released",
    "samples are clipped layer": ("dp=ldp", "model=mlp", "model.sizes=[24]"),
    "compiled steps": "a small run is not compiled: the same step by torch is what an audit sees",
    "compiled normals end": "one draw in 10^8 is another: no audit draws as many",
    "dropout masks go": ("dp=ldp", "model=cnn_cifar"),
    "all clients answer": ("dp=duchi", "epsilon=1"),
    "all clients perturb": ("dp=pldp_gaussian",),
    "FedPD's server": (*FEDPD_SMALL, "dp=cdp"),
    "FedPD's released": (*STAGE, "stage.share=raw"),
    "FedPD's": STAGE,
    "cdp's noise": SAMPLED,
    "the adaptive": (*SAMPLED, "dp_variant.bound=adaptive"),
    "ddp's shares": MASKED,
    "an answer leans": ("dp=duchi", "epsilon=1"),
    "updates are clipped": SAMPLED,
    "an update that overflowed": SAMPLED,
    "ddp sends roundings": ("dp=ddp",),
    "cdp charges participants": SAMPLED,
    "noise is calibrated to one round less": SAMPLED,
    "pld composes": ("dp=ldp", "accountant=pld"),
    "Skellam's L1": ("dp=ddp", "dp_variant.bits=20"),
    "amplification lacks": "arithmetic of sampled Skellam noise, for which there is no second accountant",
    "ddp counts amplification": MASKED,
    "shuffling amplifies": "arithmetic of a published bound, for which there is no second accountant",
    "that labels are public": "a sentence of the ledger",
    "a release without protection": (*STAGE, "stage.share=raw"),
    "nobody asks": SHORT,
    "a client opts out": SHORT,
    "the secure sum has no masks": MASKED,
    "too few who remain": (*MASKED, "upload.dropout=0.3", "upload.tolerance=0.1"),
    "correlated noise is made": SHARED_NOISE,
    "a matrix's sensitivity": (*SHARED_NOISE, "dp_variant.matrix=blt"),
    "participations that share": SHARED_NOISE,
    "rounds of a client come closer": SHARED_NOISE,
    "noise of a whole update": ("dp=ldp_update",),
    "a search costs": "the price of many runs: each of them releases what it did",
    "samples held out": "held-out samples are as protected as others: only the accuracy on them flatters",
}

FAULTS = (
    # -- who is sampled, and what that is charged as
    Fault(
        "ldp trains on shuffled passes instead of Poisson batches",
        {
            "batches.poisson(samples, self.rates[clients], steps, names, source)": (
                "batches.shuffled(samples, self.setting.batch_size, steps, torch.as_tensor(clients), source)"
            )
        },
        (f"{DRAWS}batches_of_ldp_have_the_variance_of_poisson_sampling",),
    ),
    Fault(
        "cdp draws a fixed number of clients, charged as Poisson",
        {
            "source.below(setting.sample_rate, np.arange(setting.clients), 1)[:, 0].numpy()": (
                "(source.uniforms(np.arange(setting.clients), 1)[:, 0].numpy().argsort().argsort()"
                " < setting.sample_rate * setting.clients)"
            )
        },
        (f"{MECHANISMS}cohorts_vary_as_poisson_sampling_makes_them",),
    ),
    Fault(
        "clients join more often than they are charged for",
        {"below(setting.sample_rate, np.arange": "below(1.1 * setting.sample_rate, np.arange"},
        (f"{MECHANISMS}cohorts_vary_as_poisson_sampling_makes_them",),
    ),
    Fault(
        "samples join batches more often than they are charged for",
        {"limit_of(rates[some])": "limit_of(1.2 * rates[some])"},
        (f"{MECHANISMS}ldp_samples_batches_at_the_rate_it_is_charged_for",),
    ),
    Fault(
        "ldp is charged at half its sampling rate",
        {"self._event(row[0], sigmas[row], row[1])": "self._event(row[0] / 2, sigmas[row], row[1])"},
        (f"{MECHANISMS}ldp_samples_batches_at_the_rate_it_is_charged_for",),
    ),
    Fault(
        "a sum of clients is divided by how many came",
        {
            "return np.flatnonzero(drawn & eligible), setting.sample_rate * setting.clients": (
                "return np.flatnonzero(drawn & eligible), float(drawn.sum())"
            )
        },
        (f"{MECHANISMS}cdp_samples_clients_by_poisson_and_charges_everyone",),
    ),
    Fault(
        "sums of samples are divided by the batch's own size",
        {
            "own * clip / norms.clamp(min=clip) / private.lot": (
                "own * clip / norms.clamp(min=clip) / own.sum(1, keepdim=True).clamp(min=1)"
            ),
            "gradient / work.private.lot + public": "gradient / max(1, size) + public",
        },
        (f"{DRAWS}a_samples_weight_does_not_depend_on_how_many_there_are",),
    ),
    # -- keys
    Fault(
        "the server's noise is the same every round",
        {"self.source.of(part, number) for part": "self.source.of(part) for part"},
        (f"{DRAWS}rounds_have_noises_of_their_own",),
    ),
    Fault(
        "local noise is the same every round",
        {'self.source.of("noise", round_.number)': 'self.source.of("noise")'},
        SOURCES,
    ),
    Fault(
        "the server's noise follows from the config under noise_seed=os",
        {"self.source.of(part, number) for part": f"{FROM_SEED}.of(part, number) for part"},
        (f"{SECRET}[cdp]",),
    ),
    Fault(
        "batches follow from the config under noise_seed=os",
        {'self.source.of("batches", round_.number)': f'{FROM_SEED}.of("batches", round_.number)'},
        (f"{SECRET}[ldp]",),
    ),
    Fault(
        "who takes part follows from the config under noise_seed=os",
        {'self.source.of("sampling", number, attempt)': f'{FROM_SEED}.of("sampling", number, attempt)'},
        (f"{SECRET}[cdp]",),
    ),
    Fault(
        "local noise follows from the config under noise_seed=os",
        {'self.source.of("noise", round_.number)': f'{FROM_SEED}.of("noise", round_.number)'},
        SOURCES,
    ),
    Fault(
        "dropout follows from the config under noise_seed=os",
        {'self.source.of("training", round_.number)': f'{FROM_SEED}.of("training", round_.number)'},
        SOURCES,
    ),
    Fault(
        "noise is not keyed by the run's identity",
        {"key_of(cfg.seed, _noise_identity(cfg, data)) if seeded": 'key_of(cfg.seed, "") if seeded'},
        (f"{DRAWS}no_two_runs_share_a_key[rounds=4]",),
    ),
    Fault(
        "runs on other data share a key",
        {'f"{identity.of_config(same)} {data.fingerprint}"': "identity.of_config(same)"},
        (f"{DRAWS}runs_on_neighbouring_data_share_no_noise",),
    ),
    Fault(
        "runs of other seeds share a key",
        {"repr((int(seed), identity))": "repr(identity)"},
        (f"{RANDOM}a_key_has_all_its_bytes_and_runs_have_keys_of_their_own",),
    ),
    Fault(
        "a short key file is accepted",
        {"key = path.read_bytes()": 'key = path.read_bytes().ljust(KEY_BYTES, b"0")[:KEY_BYTES]'},
        (f"{DRAWS}a_damaged_key_is_no_key",),
    ),
    Fault(
        "everybody may read the key file",
        {"os.O_EXCL, 0o600)": "os.O_EXCL, 0o644)"},
        (f"{DRAWS}a_key_is_made_whole_for_its_owner_only_and_deleted_at_the_end",),
    ),
    # -- whose numbers depend on whom
    Fault(
        "dropout masks go by the place in the batch",
        {"self._samples = samples": "self._samples = torch.arange(len(samples), device=samples.device)"},
        MISSING,
    ),
    Fault(
        "batches are drawn by the place among a client's samples",
        {"source.words(names[client, place], _STEPS": "source.words((client << 32) | place, _STEPS"},
        (f"{RANDOM}a_sample_that_is_absent_changes_no_other_samples_batches",),
    ),
    Fault(
        "all clients have the same local noise",
        {
            "noise.add_normals_(target, scale, who[: len(target)], step)": (
                "noise.add_normals_(target, scale, 0 * who[: len(target)], step)"
            ),
            "partial(noise.normals, who, chunk.rows)": "partial(noise.normals, 0 * who, chunk.rows)",
            "noise.normals(work.clients[here], row": "noise.normals(0 * work.clients[here], row",
        },
        LOCAL_NOISE,
    ),
    Fault(
        "all local steps have the same noise",
        {
            "noise.add_normals_(target, scale, who[: len(target)], step)": (
                "noise.add_normals_(target, scale, who[: len(target)])"
            ),
            "partial(noise.normals, who, chunk.rows)": "lambda step: noise.normals(who, chunk.rows)",
            "row[None], step)[0]": "row[None])[0]",
        },
        LOCAL_NOISE,
    ),
    Fault(
        "all clients answer by the same numbers (LDP-FL)",
        {"weights.device, round_.clients[rows], ": "weights.device, 0 * round_.clients[rows], "},
        (f"{MECHANISMS}models_are_perturbed_by_each_clients_own_numbers",),
    ),
    Fault(
        "all clients perturb with the same noise (PLDP-FL)",
        {"add_normals_(result, std, round_.clients)": "add_normals_(result, std, 0 * round_.clients)"},
        (f"{MECHANISMS}models_are_perturbed_by_each_clients_own_numbers",),
    ),
    Fault(
        "FedPD's feature noise goes by the place in the batch",
        {
            "recipe.noise.draw(x, self.feature_noise, samples, self.number)": (
                "recipe.noise.draw(x, self.feature_noise, torch.arange(len(x)), self.number)"
            )
        },
        (f"{ABSENT}a_sample_moves_the_clipped_sums_by_no_more_than_the_clip[optimisation-1]",),
    ),
    Fault(
        "FedPD's batches are drawn by the place among a client's samples",
        {
            "sample_names(torch.tensor([client]), samples[None].cpu())": (
                "sample_names(torch.tensor([client]), torch.arange(len(samples))[None])"
            )
        },
        (f"{ABSENT}a_sample_moves_the_clipped_sums_by_no_more_than_the_clip[optimisation-1]",),
    ),
    Fault(
        "FedPD's released noise goes by the place among the samples",
        {"noise.draw(x, source, block)": "noise.draw(x, source, torch.arange(len(block)))"},
        (f"{ABSENT}released_noise_is_a_samples_own",),
    ),
    Fault(
        "FedPD's server adds the same noise every round",
        {
            'largest_weight(round_), self.source.of("server", number)': (
                'largest_weight(round_), self.source.of("server")'
            )
        },
        (f"{DRAWS}the_distilling_server_adds_noise_of_its_own_every_round",),
    ),
    # -- how much noise
    Fault(
        "cdp's noise is nine tenths of what is charged",
        {"noise * (self.z * self.threshold": "noise * (0.9 * self.z * self.threshold"},
        (f"{MECHANISMS}cdp_noise_has_the_calibrated_size",),
    ),
    Fault(
        "ldp's noise is nine tenths of what is charged",
        {"self.sigma[clients] * self.clip_norm, dtype": "0.9 * self.sigma[clients] * self.clip_norm, dtype"},
        (f"{MECHANISMS}ldp_calibrates_each_client_to_its_own_rate_steps_and_budget",),
    ),
    Fault(
        "the engines add nine tenths of the noise",
        {
            "scale = -lr / work.private.lot": "scale = -0.9 * lr / work.private.lot",
            "work.private.noise_std[position] * z": "0.9 * work.private.noise_std[position] * z",
        },
        LOCAL_NOISE,
    ),
    Fault(
        "local noise is on half of the weights only",
        {
            "add_noise(chunk.rows, scale * chunk.active[:, step], step)": (
                "add_noise(chunk.rows[:, : chunk.rows.shape[1] // 2], scale * chunk.active[:, step], step)"
            ),
            "gradient = gradient + work.private.noise_std[position] * z": (
                "gradient[: len(z) // 2] += work.private.noise_std[position] * z[: len(z) // 2]"
            ),
        },
        LOCAL_NOISE,
    ),
    Fault(
        "the server's noise is on half of the weights only",
        {"source.normal(aggregate)": "source.normal(aggregate) * (torch.arange(len(aggregate)) % 2)"},
        (f"{MECHANISMS}cdp_noise_has_the_calibrated_size",),
    ),
    Fault(
        "an empty batch gets no noise",
        {
            "scale * chunk.active[:, step], ": "scale * chunk.active[:, step] * (chunk.sizes[:, step] > 0), ",
            "if work.private.noise:": "if work.private.noise and size:",
        },
        LOCAL_NOISE,
    ),
    Fault(
        "the adaptive bit's noise is a tenth",
        {"(self.bit_noise * largest_weight)": "(0.1 * self.bit_noise * largest_weight)"},
        (f"{MECHANISMS}both_adaptive_releases_have_the_noise_they_are_charged_for",),
    ),
    Fault(
        "the adaptive update has the unsplit noise",
        {"noise[:-1] * (self.z_update * ": "noise[:-1] * (self.z * "},
        (f"{MECHANISMS}both_adaptive_releases_have_the_noise_they_are_charged_for",),
    ),
    Fault(
        "normals are nine tenths as wide",
        {
            "[b.fadd(whole, b.fmul(t, self.polynomial(LOG, t)))]": (
                "[b.fmul(number(0.81), b.fadd(whole, b.fmul(t, self.polynomial(LOG, t))))]"
            ),
            "radius = _root(": "radius = 0.9 * _root(",
        },
        (f"{RANDOM}normals_follow_the_normal_law",),
        compiled=True,
    ),
    Fault(
        "compiled normals end at 5.77 deviations",
        {
            "radius = b.call(root, [b.fadd(whole, b.fmul(t, self.polynomial(LOG, t)))])": (
                "long, end = b.fadd(whole, b.fmul(t, self.polynomial(LOG, t))), number(33.3)  # 5.77^2\n"
                '        radius = b.call(root, [b.select(b.fcmp_ordered("<", long, end), long, end)])'
            )
        },
        (f"{DRAWS}compiled_normals_reach_as_far_as_the_oracles",),
        compiled=True,
    ),
    Fault(
        "compiled steps clip to twice the norm",
        {
            "np.float32(clip) / np.float32(max(norm, clip))": (
                "np.float32(2 * clip) / np.float32(max(norm, 2 * clip))"
            )
        },
        (f"{CHAIN}a_round_equals_the_loop[tanh-none-private]",),
        compiled=True,
    ),
    Fault(
        "compiled steps leave a kernel out of the norm",
        {"norms[b] += np.float64(dot(each": "norms[b] += 0.0 * np.float64(dot(each"},
        (f"{CHAIN}a_round_equals_the_loop[convolutions-none-private]",),
        compiled=True,
    ),
    Fault(
        "compiled steps leave a group norm out of the norm",
        {"norms[b] += np.float64(_squares(": "norms[b] += 0.0 * np.float64(_squares("},
        (f"{CHAIN}a_round_equals_the_loop[grouped-none-private]",),
        compiled=True,
    ),
    Fault(
        "compiled steps forget the bias of a group norm in the norm",
        {"(hat[i] * hat[i] + np.float32(1))": "(hat[i] * hat[i])"},
        (f"{CHAIN}a_round_equals_the_loop[grouped-none-private]",),
        compiled=True,
    ),
    Fault(
        "compiled steps take a sum of squares that vanished for nothing",
        {"+ out * _LOST": "+ 0 * _LOST"},
        (f"{CHAIN}a_gradient_whose_factors_squares_vanish_is_clipped[compiled]",),
        compiled=True,
    ),
    Fault(
        "norms take a sum of squares that vanished for nothing",
        {"return 2 * count * torch.finfo(dtype).tiny": "return 0.0"},
        (f"{CHAIN}a_gradient_whose_factors_squares_vanish_is_clipped[torch]",),
    ),
    Fault(
        "compiled steps keep a sample that overflowed",
        {"if not np.isfinite(norm):  # nothing": "if norm < 0:  # nothing"},
        (f"{CHAIN}one_bad_sample_moves_a_private_step_no_further_than_any_other[tanh-none-nan]",),
        compiled=True,
    ),
    Fault(
        "compiled steps draw the same noise at every step",
        {"names[:there, 1] = number": "names[:there, 1] = 0"},
        (f"{CHAIN}a_round_equals_the_loop[regression-none-private]",),
        compiled=True,
    ),
    Fault(
        "compiled steps clip shared samples instead of own ones",
        {
            "                if b < own:\n                    factor[b] = np.float32(clip)": (
                "                if b >= own:\n                    factor[b] = np.float32(clip)"
            )
        },
        (f"{CHAIN}shared_samples_are_not_clipped_and_count_as_their_own_mean[regression-private]",),
        compiled=True,
    ),
    Fault(
        "ddp's shares of noise are for all clients instead of those present",
        {"/ least(participants, self.wiring.tolerance)": "/ self.setting.clients"},
        (f"{DDP}every_round_releases_the_same_noise_whoever_takes_part[2-masked]",),
    ),
    Fault(
        "an answer leans further than epsilon allows (LDP-FL)",
        {"uniform < (1 + place * tilt) / 2": "uniform < (1 + 1.1 * place * tilt) / 2"},
        (f"{LDPFL}the_two_ends_of_the_range_differ_by_exactly_e_to_the_epsilon",),
    ),
    # -- clipping
    Fault(
        "samples are not clipped",
        {
            "own * clip / norms.clamp(min=clip) / private": "own / private",
            "(per_sample * (clip / norms.clamp(min=clip)))[:size]": "per_sample[:size]",
        },
        MISSING,
    ),
    Fault(
        "samples are clipped layer by layer",
        {
            "sum(\n            (layer.square_norms(": "max_of(\n            (layer.square_norms(",
            "class GhostTape:": (
                "def max_of(norms: Any, start: Tensor) -> Tensor:\n"
                "    return torch.stack([start, *norms]).amax(0)\n\n\nclass GhostTape:"
            ),
        },
        (f"{MISSING[0]}[mlp-FastEngine]",),
    ),
    Fault(
        "samples are clipped at twice the bound",
        {"Private(self.clip_norm, std": "Private(2 * self.clip_norm, std"},
        (f"{MECHANISMS}ldp_calibrates_each_client_to_its_own_rate_steps_and_budget",),
    ),
    Fault(
        "updates are clipped at twice the bound",
        {"= clip(messages, self.threshold)": "= clip(messages, 2 * self.threshold)"},
        (f"{MECHANISMS}one_client_moves_the_aggregate_by_at_most_the_sensitivity",),
    ),
    Fault(
        "updates are clipped tensor by tensor",
        {
            "clipped, norms = clip(messages, self.threshold)": (
                "parts = messages.split([e.stop - e.start for e in self.setting.layout.sent_entries], 1)\n"
                "        clipped = torch.cat([clip(p, self.threshold)[0] for p in parts], 1)\n"
                "        norms = messages.norm(dim=1, keepdim=True)"
            )
        },
        (f"{MECHANISMS}one_client_moves_the_aggregate_by_at_most_the_sensitivity",),
    ),
    Fault(
        "an update that overflowed passes the clip",
        {
            "messages, norms = messages.masked_fill(~sound, 0), norms.masked_fill(~sound, 0)": (
                "messages, norms = messages.nan_to_num(), norms.masked_fill(~sound, 0)"
            )
        },
        (f"{MECHANISMS}an_overflowing_update_is_bounded_too",),
    ),
    Fault(
        "ddp sends roundings beyond the norm bound",
        {
            "torch.linalg.vector_norm(drawn, dim=1, dtype=torch.float64) <= self.bound": "rows >= 0",
        },
        (f"{DDP}rounding_is_unbiased_and_keeps_its_bound",),
    ),
    # -- the ledger
    Fault(
        "cdp charges participants only, under Poisson sampling",
        {"if self.seen or setting.schedule is not None else np.arange(setting.clients)": ""},
        (f"{MECHANISMS}cdp_samples_clients_by_poisson_and_charges_everyone",),
    ),
    Fault(
        "the first round is not charged",
        {"self.participations[clients] += 1": "self.participations[clients] += self.rounds > 0"},
        (f"{PRIVACY}the_ledger_charges_whom_it_is_told_and_nobody_else",),
    ),
    Fault(
        "noise is calibrated to one round less",
        {"return self.rounds if self.schedule is None": "return self.rounds - 1 if self.schedule is None"},
        (f"{MECHANISMS}cdp_budget",),
    ),
    Fault(
        "delta is doubled",
        {"rdp=curve, delta=delta)": "rdp=curve, delta=2 * delta)"},
        (f"{PRIVACY}rdp_is_at_most_opacus_and_equals_dp_accounting",),
    ),
    Fault(
        "the Renyi curve is scaled down",
        {"curve = curve + times * event.rdp()": "curve = curve + 0.9 * times * event.rdp()"},
        (f"{PRIVACY}rdp_is_at_most_opacus_and_equals_dp_accounting",),
    ),
    Fault(
        "pld composes one participation less",
        {"SelfComposedDpEvent(known, times)": "SelfComposedDpEvent(known, max(1, times - 1))"},
        (f"{PRIVACY}pld_of_a_gaussian_is_exact",),
    ),
    Fault(
        "Skellam's L1 norm is taken as its L2 norm",
        {"variance, l1_norm(l2, self.width), l2)": "variance, l2, l2)"},
        (f"{DDP}a_pinned_epsilon_at_a_rate_below_one",),
    ),
    Fault(
        "amplification lacks its factor of three",
        {"factor = 0.0 if k == 2 else math.log(3)": "factor = 0.0"},
        (f"{PRIVACY}a_pinned_epsilon_of_ddp_where_the_amplifications_factor_of_three_counts",),
    ),
    Fault(
        "ddp counts amplification against the server",
        {
            "self._charge(self.z, self.bits, rate=1.0)": (
                "self._charge(self.z, self.bits, rate=rate_of(setting))"
            ),
            'rate = 1.0 if self.against == "server" else rate_of(self.setting)': (
                "rate = rate_of(self.setting)"
            ),
        },
        (f"{DDP}a_pinned_epsilon_at_a_rate_below_one",),
    ),
    Fault(
        "shuffling amplifies twice as much as the bound",
        {"* 8 * inner": "* 4 * inner"},
        (f"{LDPFL}the_shuffle_bound_by_hand_and_its_range",),
    ),
    Fault(
        "that labels are public is not said of the neighbours",
        {"if narrower else before.relation": "if False else before.relation"},
        (f"{FEDPD}what_is_proved_is_proved_of_neighbours_with_the_same_labels",),
    ),
    Fault(
        "a release without protection leaves the proof as it was",
        {"provable=None if release.flaws else before.provable": "provable=before.provable"},
        (f"{FEDPD}the_ledger_says_what_sharing_costs_and_that_nothing_is_proved",),
    ),
    Fault(
        "nobody asks who can afford a round",
        {"eligible = self.ledger.eligible()\n": "eligible = np.ones(self.setting.clients, dtype=bool)\n"},
        (f"{RUN}clients_out_of_budget_opt_out_and_training_ends",),
    ),
    Fault(
        "a client opts out a round too late",
        {"claimed, self.participations + 1, ()": "claimed, self.participations, ()"},
        (f"{PRIVACY}a_client_opts_out_before_the_round_that_would_overspend",),
    ),
    # -- the secure sum
    Fault(
        "the secure sum has no masks",
        {"mask = self._mask(seed, masks)": "mask = 0 * self._mask(seed, masks)"},
        (f"{DDP}masks_cancel_and_hide",),
    ),
    Fault(
        "too few who remain are summed all the same",
        {"few = len(here) < least(count, self.tolerance) or not": "few = not"},
        (f"{DDP}a_round_with_too_few_left_is_refused",),
    ),
    # -- correlated noise, whole updates, searches
    Fault(
        "correlated noise is made for one participation",
        {"self.scale = z * float(reach[-1])": "self.scale = z * float(reach[0])"},
        (f"{CORRELATED}the_noise_of_the_sums_has_the_variance_of_theory",),
    ),
    Fault(
        "a matrix's sensitivity counts the last participation only",
        {"total[first:] += c[: len(c) - first]": "total[first:] = c[: len(c) - first]"},
        (f"{MATRICES}the_sensitivity_is_that_of_the_worst_pattern",),
    ),
    Fault(
        "participations that share noise cost as much as the first",
        {"self.noise_multiplier / self.reach[count - 1]": "self.noise_multiplier / self.reach[0]"},
        (f"{CORRELATED}fewer_participations_cost_less_and_more_cannot_be_had",),
    ),
    Fault(
        "rounds of a client come closer than their separation",
        {"block = length - separation + 1": "block = length"},
        ("tests/rounds/test_schedule.py::test_rounds_of_a_client_are_so_far_apart",),
    ),
    Fault(
        "noise of a whole update covers adding one, not replacing it",
        {"return 2 * self.clip_norm * z": "return self.clip_norm * z"},
        (f"{UPDATE}gaussian_noise_of_twice_the_bound_and_each_clients_own",),
    ),
    Fault(
        "a search costs as much as its dearest trial",
        {"found.sum(0) + (trials - len(known)) * dearest": "dearest"},
        (f"{SEARCH}the_price_of_a_search",),
    ),
    Fault(
        "samples held out are trained on",
        {"train.append(part[~out])": "train.append(part)"},
        ("tests/partitions/test_validation.py::test_every_client_trains_on_the_rest",),
    ),
)


# -- the copy


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the repository whose package has its config inside, so that no installed one is asked."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        copy = Path(place) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        (copy / PACKAGE / CONF).symlink_to(Path("..") / CONF)
        yield copy


def tested(
    copy: Path,
    tests: tuple[str, ...],
    limit: float = LIMIT,
    cache: str = "",
    audit: tuple[str, ...] | None = None,
) -> tuple[int, str]:
    """Pytest's exit code (or that of an audit of a run) and what it said, from a child of this process, which
    has torch imported.

    `cache` is an empty folder for machine code, where what lies beside the sources must not be used.
    """
    assert PACKAGE not in sys.modules, "a child would have it from here"
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if not child:
            code = 99
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
                signal.alarm(int(limit))  # ends the child
                _imported(copy, cache)
                code = _pytest(tests) if audit is None else _audit(audit)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        said = out.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    return code, f"{said}\nstopped after {limit:.0f} s" if code == -signal.SIGALRM else said


def _imported(copy: Path, cache: str) -> None:
    """In the child: the copy is what is imported."""
    import numba

    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)  # of the commands a test starts
    if cache:
        numba.config.CACHE_DIR = cache
    package, conf = importlib.import_module(PACKAGE), importlib.import_module(f"{PACKAGE}.{CONF}")
    found = [Path(str(module.__file__)).resolve() for module in (package, conf)]
    assert found == [(copy / part / "__init__.py").resolve() for part in (PACKAGE, CONF)], found


def _pytest(tests: tuple[str, ...]) -> int:
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def _audit(overrides: tuple[str, ...]) -> int:
    """1 if `fedpriv audit` flags the run, with a line for each check that failed."""
    from fedpriv import compose
    from fedpriv.audit import mechanism, sensitivity
    from fedpriv.audit.taps import Bench

    bench = Bench(compose(*SMALL, *overrides))
    results = [sensitivity.audit(bench, 60 if "dp=ddp" in overrides else 8)]
    if "dp=duchi" in overrides:
        results.append(mechanism.audit(bench, 1000))
    for finding in (f for r in results for f in r.findings if f.verdict == "VIOLATED"):
        print(f"E  {finding.check}: {finding.text}")
    return int(any(r.violated for r in results))


def edited(fault: Fault, root: Path) -> dict[Path, str]:
    """The files a fault changes, as they are with it."""
    texts = {path: path.read_text() for path in sorted((root / PACKAGE).rglob("*.py"))}
    changed: dict[Path, str] = {}
    for old, new in fault.edits.items():
        where = [path for path, text in texts.items() for _ in range(text.count(old))]
        if len(where) != 1:
            raise Stale(f"occurs {len(where)} times: {old.splitlines()[0]}")
        changed[where[0]] = changed.get(where[0], texts[where[0]]).replace(old, new)
        compile(changed[where[0]], str(where[0]), "exec")
    return changed


@contextmanager
def applied(fault: Fault, copy: Path) -> Iterator[None]:
    """The copy with a fault. Times of change tell Python and numba that what they compiled has changed."""
    before = {path: (path.read_bytes(), path.stat()) for path in edited(fault, copy)}
    try:
        for path, text in edited(fault, copy).items():
            path.write_text(text)
            os.utime(path, (time.time(), time.time() + 60 + next(_SECONDS)))
        yield
    finally:
        for path, (content, stat) in before.items():
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


# -- the verdicts


def judge(fault: Fault, copy: Path, audit: tuple[str, ...] | None = None) -> tuple[str, str]:
    """caught, MISSED, stale or broken, and what was seen."""
    try:
        with applied(fault, copy), tempfile.TemporaryDirectory() as fresh:
            limit, cache = LIMIT if audit is None else ALL, fresh if fault.compiled else ""
            code, said = tested(copy, fault.tests, limit, cache, audit)
    except Stale as problem:
        return "stale", str(problem)
    return {0: "MISSED", 1: "caught"}.get(code, "broken"), _reason(said) if code else ""


def _reason(said: str) -> str:
    lines = [line[1:].strip() for line in said.splitlines() if line.startswith("E  ")]
    return lines[0] if lines else said.strip().splitlines()[-1]


def composition(fault: Fault) -> tuple[str, ...] | str:
    """The run an audit is asked about, or why none is."""
    found = [run for start, run in AUDITED.items() if fault.name.startswith(start)]
    return found[0] if found else ("dp=ldp",)


def shown(faults: list[Fault]) -> int:
    """Every fault, where it is and who should notice; how many are stale."""
    stale = 0
    for fault in faults:
        try:
            places = ", ".join(str(p.relative_to(ROOT)) for p in edited(fault, ROOT))
        except Stale as problem:
            places, stale = f"STALE: {problem}", stale + 1
        print(f"{fault.name}\n    {places}\n    {' '.join(fault.tests)}")
    print(f"{len(faults)} faults, {stale} stale")
    return stale


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults whose name holds one of these")
    parser.add_argument("--list", action="store_true", help="show the faults and where they are; run nothing")
    parser.add_argument("--audit", action="store_true", help="ask `fedpriv audit` instead of the tests")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th fault, from the I-th on")
    given = parser.parse_args()
    faults = [f for f in FAULTS if not given.only or any(part in f.name for part in given.only)]
    if given.audit:
        for fault in [f for f in faults if isinstance(composition(f), str)]:
            print(f"left out {fault.name}: {composition(fault)}")
            faults.remove(fault)
    first, every = map(int, given.part.split("/"))
    faults = faults[first - 1 :: every]
    if not faults:
        parser.error(f"no fault is called {' or '.join(given.only)}; --list shows them")
    if given.list:
        return 1 if shown(faults) else 0
    for name in HEAVY:
        importlib.import_module(name)
    began, caught = time.monotonic(), 0
    sound: dict[tuple[str, ...], bool] = {}  # runs that an audit passes without a fault
    with copied() as copy:
        code, said = 0, ""
        if not given.audit:
            code, said = tested(copy, tuple(dict.fromkeys(t for f in faults for t in f.tests)), limit=ALL)
        if code:
            print(f"{said}\nwithout any fault the tests do not pass")
            return 2
        for fault in faults:
            run = composition(fault) if given.audit else None
            assert not isinstance(run, str)
            if run is not None and run not in sound:
                code, said = tested(copy, (), limit=ALL, audit=run)
                sound[run] = code == 0
                state = {0: "quiet", 1: "FLAGGED"}.get(code, "broken")
                seen = _reason(said)[:90] if code else ""
                print(f"{state:<7} without a fault: {' '.join(run)} {seen}".rstrip(), flush=True)
            verdict, seen = judge(fault, copy, run)
            if run is not None and not sound[run]:
                verdict = "broken"  # what flags sound code says nothing
            caught += verdict == "caught"
            print(f"{verdict:<7} {fault.name:<66} {seen[:90]}".rstrip(), flush=True)
    print(f"caught {caught} of {len(faults)}, {time.monotonic() - began:.0f} s")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
