"""LDP-FL's anonymous uploads (Sun, Qian and Chen 2021, Algorithm 3 and Figure 2).

  parameter  every weight is a message of its own, (id, value), sent after its own delay from U(0, delay);
  model      for comparison: a client's whole model is one message, and only whose it is gets lost.

Independent uniform delays put all clients' messages into a uniformly random order. The server is handed
that stream and nothing else; it collects the values of each id in the order of their arrival, so that a row
of what it passes on belongs to no client, and only what is the same for all of them makes sense: a mean, or a
median.

This simulates the anonymous channel: no addresses and no other traces of a sender exist here.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.errors import positive
from fedpriv.parts.declarations import MEANS, Order, UploadFacts
from fedpriv.privacy import relations
from fedpriv.privacy.ledger import Guarantee
from fedpriv.privacy.shuffling import BOUND, Reports, largest_local_epsilon
from fedpriv.randomness.source import Source
from fedpriv.rounds.setting import Round
from fedpriv.uploads.base import Upload

_BLOCK = 1 << 18  # messages put in order at once: what stays in the cache
_SHORT = 1 << 16  # ids that numpy sorts by their digits


@dataclass(frozen=True)
class Stream:
    """All that reaches the server: messages in the order of their arrival."""

    ids: Tensor  # [M] which weight; of whole models: none, []
    values: Tensor  # [M]; of whole models: [C, D']
    times: Tensor  # [M], ascending


class Shuffled(Upload):
    def __init__(self, *, unit: Literal["parameter", "model"] = "parameter", delay: float = 1.0):
        positive("upload", "must be positive, for it is what mixes the messages", delay=delay)
        self.unit, self.delay = unit, delay
        mixes: Order = "values" if unit == "parameter" else "rows"
        self.facts = UploadFacts(takes=MEANS, mixes=mixes, shows_cohort=False)
        self._last = 0.0

    # -- what travels

    def encode(self, messages: Tensor, round_: Round, source: Source) -> tuple[list[Stream], int]:
        """Streams of consecutive ids, which is faster: the server sorts by id, so this tells it nothing."""
        count, width = messages.shape
        self._last = 0.0
        if self.unit == "model" or not count:
            order, times = self._arrivals(count, source)
            return [Stream(order.new_zeros(0), messages[order], times)], messages.numel() * 4
        streams = []
        at_once = max(1, _BLOCK // max(1, count))
        for first in range(0, width, at_once):
            block = messages[:, first : first + at_once]
            order, times = self._arrivals(block.numel(), source.of(first))
            values = block.reshape(-1)[order]
            streams.append(Stream((order % block.shape[1] + first).to(torch.int32), values, times))
        return streams, messages.numel() * (4 + id_bytes(width))

    def _arrivals(self, count: int, source: Source) -> tuple[Tensor, Tensor]:
        """In which order messages arrive, and when.

        The order of independent uniform delays is a uniform permutation, whatever the delays, and delays in
        ascending order are sums of exponential steps over their total: two draws, and nothing to sort.
        """
        order = source.permutation(count, self.setting.device)
        steps = -torch.log1p(-source.of("delays").uniforms([0], count + 1)[0])
        times = steps.cumsum(0)
        times = (times[:-1] * (self.delay / times[-1])).float()
        if count:
            self._last = max(self._last, float(times[-1]))
        return order, times

    def decode(self, sent: list[Stream], round_: Round) -> Tensor:
        """[C, D']: the j-th row holds whatever arrived j-th for each weight."""
        if sent[0].values.dim() == 2:  # whole models
            return sent[0].values
        return torch.cat([_by_id(stream) for stream in sent], 1)

    def diagnostics(self) -> dict[str, float]:
        return {"last_arrival": self._last}

    # -- what it is worth

    def amplify(self, guarantee: Guarantee) -> Guarantee:
        crowd = self._crowd()
        remark: dict[str, object] = {"unit": self.unit, "reports_in_a_shuffle": crowd, "bound": BOUND}
        charges = [c[0] for c in guarantee.provable or () if len(c) == 1 and isinstance(c[0], Reports)]
        why, provable = "", guarantee.provable
        if not charges:
            why = "the bound is about values answered at random one by one, which this dp_variant does not do"
        elif len(charges) > 1:
            why = (
                "the bound takes all clients to answer alike, but here budgets differ, and the two points a "
                "weight is answered by tell its sender's budget"
            )
        else:
            why, event = self._bounded(charges[0], crowd, remark)
            provable = guarantee.provable if why else [(event,)]
        flaws = guarantee.flaws
        if why and guarantee.unit != "none":
            flaws = (*flaws, f"shuffling provably gains nothing here: {why}")
        return replace(
            guarantee,
            relation=guarantee.relation if why else relations.SHUFFLED,
            sampler=guarantee.sampler if why else f"uniform shuffle of the reports of {crowd} participants",
            provable=provable,
            flaws=flaws,
            not_covered=(
                *guarantee.not_covered,
                "messages on their way to the shuffle, and traces of a sender outside of them (addresses)",
                *(() if why else ("a server that knows or controls other participants: they hide nobody",)),
            ),
            details=guarantee.details
            | {"shuffle": remark | {"gains": not why}}
            | ({} if why else {"accountant": "shuffling"}),
        )

    def _bounded(self, charge: Reports, crowd: int, remark: dict[str, object]) -> tuple[str, Reports]:
        """Why nothing is gained (or nothing to say), and the charge with the shuffle."""
        setting, whole = self.setting, self.unit == "model"
        event = Reports(
            charge.local * charge.number if whole else charge.local, 1 if whole else charge.number, crowd
        )
        count, delta = setting.most, setting.delta
        share = event.share(count, delta)
        limit = largest_local_epsilon(crowd, share)
        total, before = event.amplified(count, delta), charge.with_delta(count, delta)
        remark |= {
            "epsilon_of_one_report": event.local,
            "largest_epsilon_the_bound_holds_for": limit,
            "delta_of_one_report": share,
            "epsilon_of_one_report_shuffled": event.one_amplified(count, delta),
            "epsilon_total_shuffled": total,
        }
        if total is None:
            room = f"at most {limit:.3g}" if limit > 0 else "more of them, whatever its epsilon"
            return (
                f"a report of epsilon {event.local:g} is one of {crowd}, and the bound needs {room} for the "
                f"{event.number * count:,} reports of a client at delta {delta:g}"
            ), event
        if total >= before:
            return f"the bound gives epsilon {total:.3g}, and without shuffling {before:.3g} holds", event
        return "", event

    def _crowd(self) -> int:
        """The fewest participants of a round."""
        setting = self.setting
        if setting.schedule is not None:
            return min(len(part) for part in setting.schedule)
        return max(1, round(setting.sample_rate * setting.clients))


def id_bytes(width: int) -> int:
    """Whole bytes that can number `width` weights."""
    return max(1, -(-(width - 1).bit_length() // 8))


def _by_id(stream: Stream) -> Tensor:
    """The values of each id in the order of their arrival, [C, ids]."""
    first, last = (int(i) for i in stream.ids.aminmax())
    if stream.ids.is_cpu and last - first < _SHORT:
        order = torch.from_numpy((stream.ids - first).numpy().astype(np.uint16).argsort(kind="stable"))
    else:
        order = stream.ids.argsort(stable=True)
    return stream.values[order].view(last - first + 1, -1).T
