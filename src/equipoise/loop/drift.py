"""Do workers still agree on what must be the same on all of them? Each tells hashes of it where all meet anyway.

    recipe      settings, versions, options of the optimizer
    batch       sizes of the next batches, of all workers
    place       what each worker has taken of the epoch
    order       decisions that workers take together; what a worker visits, and what the rank before it computes for it
    topology    links of the coming rounds: what one sends with a weight, another receives with the same
    parameters  where a sync makes models equal: those after the first round since the last meeting

A row of numbers per worker, in the message of a control point. Only if they differ is more sent, to say in what.
`drift_words` makes the error of it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..comm.base import Comm
from ..comm.membership import Membership
from ..core.errors import Refused
from ..core.marks import BITS, fold, mark, mark_link, round_off
from .drift_words import RoundLink, difference, other_links, other_order, worker_name

if TYPE_CHECKING:
    from .data_position import DataPoint, DataPosition
    from .step import Step

_ALIKE = ("recipe", "batch sizes", "place in the data", "order", "parameters")  # one number each, the same on all
COLUMNS = len(_ALIKE) + 4  # and what is visited, what the next rank should visit, links to others, links from them
_AHEAD = 8  # rounds whose links are compared before workers wait for each other in them
_OF_ONE_WORKER = ("params", "lr", "initial_lr", "max_lr", "min_lr")  # of an optimizer: may follow the batch size


class Place(NamedTuple):
    """Where the steps of a loop are in the data; its loader may be ahead."""

    position: DataPosition
    at: DataPoint


def passport(settings: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on all workers before anything else is."""
    from .. import __version__

    return {"equipoise": __version__, "torch": str(torch.__version__), **settings}


def refuse_other_recipe(comm: Comm, own: dict[str, Any]) -> None:
    """Collective, and the first thing that the workers of a generation do."""
    told = comm.gather_objects(own) if comm.size > 1 else [own]
    if any(each != told[0] for each in told):
        raise difference(comm, 0, "recipe", list(map(_mark_table, told)), told)
    if comm.membership is not None and comm.rank == 0 and not comm.membership.waiting:
        comm.membership.publish(json.dumps(own))


def let_in(membership: Membership, own: dict[str, Any]) -> None:
    """A worker that would join with other settings or versions stays outside: the run goes on without it."""
    text = membership.published()
    agreed: dict[str, Any] = json.loads(text) if text else own
    plain: dict[str, Any] = json.loads(json.dumps(own))
    differing = [name for name in {**agreed, **plain} if agreed.get(name) != plain.get(name)]
    if text and differing:
        name, who = differing[0], membership.worker
        here, there = (table.get(name, "not set") for table in (plain, agreed))
        raise Refused(f"worker {who} was not let in: {name} is {here} there and {there} on the workers of the run", who)


class DriftCheck:
    """One worker's side. settings: its passport. place: where the loop is, if it has a position."""

    def __init__(self, step: Step, settings: dict[str, Any], place: Callable[[], Place | None]):
        self.step, self.comm, self.settings, self.place = step, step.comm, settings, place
        self._settings = _mark_table(settings)
        # Unlike processors round differently: equal bits cannot be expected of them.
        alike = self.comm.virtual or len(set(self.comm.gather_objects(_processor()))) == 1
        self._equal = alike and step.talks and step.sync.equal_after_round()
        self._always = step.sync.needs().every_step
        self._ended = False  # has a round ended with this step?
        self._parameters = 0  # a hash of them after the round that is compared next
        self._sizes: tuple[list[int] | None, int] = None, 0  # the last list of batch sizes, and its hash
        topology = getattr(step.sync, "topology", None)
        self._weighed = topology is not None and not topology.directed
        cycle = topology.on(self.comm.size).cycle if topology is not None and not step.sync.draws_links else 0
        self._ahead = min(cycle or _AHEAD, _AHEAD)

    def after_step(self) -> None:
        """Called after every step. Where models are equal only after rounds, it keeps a hash of the first of them."""
        self._ended = self._equal and self.step.clock.due
        if self._ended and not self._parameters and not self._always:
            self._hash_parameters()

    def _hash_parameters(self) -> None:
        self._parameters = mark((self.step.clock.rounds, fold(self.step.flat.gather())))

    def row(self) -> list[float]:
        """What this worker tells at a meeting."""
        step, place = self.step, self.place()
        if self._ended:  # a round has just ended: the newest model can be compared
            self._hash_parameters()
        visited = expected = taken = 0
        if place is not None:
            visited, expected = place.position.order_marks()
            listed = place.position.batch.sizes()
            if listed is not self._sizes[0]:
                self._sizes = listed, mark(listed)
            taken = mark(_taken(place)) if step.lockstep else 0
        recipe = mark((self._settings, _options_of(step.optimizer)))
        order = mark(step.order.agreed_on()) if step.order is not None else 0
        to_others = from_others = 0
        for link in self._links():
            value = mark_link(*link)
            if link.source == self.comm.rank:
                to_others += value
            else:
                from_others += value
        # Where each worker takes its own number of steps, a schedule has led them to different sizes.
        sizes = self._sizes[1] if step.lockstep else 0
        alike = recipe, sizes, taken, order, self._parameters
        links = to_others % (1 << BITS), from_others % (1 << BITS)
        return [float(value) for value in (*alike, visited, expected, *links)]

    def judge(self, table: np.ndarray) -> None:
        """Raise `Drift` on all workers if their rows do not fit together."""
        self._parameters, self._ended = 0, False
        for column, kind in enumerate(_ALIKE):
            if (table[:, column] != table[0, column]).any():
                told = self.comm.gather_objects(self._details(kind))
                raise difference(self.comm, self.step.clock.step, kind, table[:, column].tolist(), told)
        visited, expected, to_others, from_others = table[:, len(_ALIKE) :].T
        following = np.roll(visited, -1)
        wrong = (expected != 0) & (following != 0) & (expected != following)
        if wrong.any():
            raise other_order(self.comm, self.step.clock.step, self.step.clock.epoch, np.flatnonzero(wrong).tolist())
        # Unsigned sums wrap at 2^64, which the remainder does not see.
        sent, received = (int(column.astype(np.uint64).sum()) for column in (to_others, from_others))
        if (sent - received) % (1 << BITS):
            raise other_links(self.comm, self.step.clock.step, self.comm.gather_objects(self._links()))

    def _links(self) -> list[RoundLink]:
        """Of this worker in the coming rounds, with the share of all models that flows along each: it is symmetric."""
        step, me = self.step, self.comm.rank
        first = step.clock.rounds
        if not step.talks or step.sync.links(first) is None:
            return []
        shares = step.sync.mean_shares() if self._weighed else []
        mine = shares[me] if shares else 1.0
        found: list[RoundLink] = []
        for number in range(first, first + self._ahead):
            links = step.sync.links(number)
            assert links is not None
            flows = {peer: mine * weight if self._weighed else 0.0 for peer, weight in links.sources}
            found += [RoundLink(number, peer, me, flow) for peer, flow in flows.items()]
            found += [RoundLink(number, me, peer, flows.get(peer, 0.0)) for peer in links.targets]
        return [link._replace(weight=round_off(link.weight) / 1e6) for link in found]

    def _details(self, kind: str) -> dict[str, Any]:
        """What a hash was of, by name."""
        step, place = self.step, self.place()
        if kind == "recipe":
            return {**self.settings, **_options_of(step.optimizer)}
        if kind == "batch sizes" and place is not None:
            sizes = place.position.batch.sizes()
            return {f"the batch of worker {worker_name(self.comm, rank)}": size for rank, size in enumerate(sizes)}
        if kind == "place in the data" and place is not None:
            return {f"the count {name}": value for name, value in _taken(place).items()}
        if kind == "order" and step.order is not None:
            return {"the hash of what was decided": step.order.agreed_on()}
        if kind == "parameters" and self._always:
            return {s.name: hex(fold(step.flat.x[s.start : s.stop])) for s in step.flat.slices}
        return {}


def _mark_table(table: dict[str, Any]) -> int:
    return mark(sorted(table.items(), key=lambda item: item[0]))


def _taken(place: Place) -> dict[str, Any]:
    """What all workers know of where they are."""
    state = place.at.state()
    return {name: state[name] for name in ("taken", "consumed") if name in state}


def _options_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    options: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        prefix = f"optimizer.{number}." if number else "optimizer."
        options |= {f"{prefix}{name}": str(value) for name, value in group.items() if name not in _OF_ONE_WORKER}
    return options


@lru_cache(maxsize=1)
def _processor() -> str:
    """What decides how numbers are rounded here."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model} {torch.backends.cpu.get_cpu_capability()}"
