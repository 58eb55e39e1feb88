from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..core.errors import WorkerError
from ..core.method import Metadata, option
from ..signal.base import GradientView
from ..signal.layers import Layers
from .balance import NOTHING, PAIR, Decide, Decided, alone
from .balanced import Balanced
from .balancer import Balancer
from .coordinate import by_factors, by_rows, by_shards, by_stale, turns_of
from .factors import Room, forms_of, merged, room_of, slices_of

_SHORT = 1 << 14  # numbers of a vector that is simply sent to everybody,
_FEW = 1 << 12  # and of all vectors of a step that are not worth a thought
_TOGETHER = 8  # steps at the most whose short vectors go round in one message


@dataclass
class CDGraB(Balanced):
    """PairBalance over all workers: one running sum, the workers' pairs in sequence, each keeps its own examples.

        for every pair of steps, for w = 1..W:  v = g_w(2k-1) - g_w(2k),  s = -sign <S, v>,  S <- S + s v,
                                                worker w's pair goes to the two ends of its next epoch

    The sum over workers stays balanced, so its floor does not grow with their number (`IDGraB`'s grows like its
    square root). There is no server and no gather of gradients. `coordinate`:

    - factors: the layers' inputs and output gradients go round, and every worker holds a slice of S. Exact;
    - shards: every worker holds a slice of S and gets that slice of the differences. Exact, for any layers;
    - stale: all workers decide against the S of the step's beginning; one sum a step. Not exact;
    - auto: the cheaper exact one, by the bytes of the first step. Sketches are short and are simply sent to everybody,
      those of eight steps in one message: signs are needed at the end of an epoch only, and come out the same.

    All workers decide all signs; a hash of them is compared after every epoch. With one worker it is `PairBalance`.

    Reference: Cooper, Guo, Pham, Yuan, Ruan, Lu, De Sa, Coordinating Distributed Example Orders for Provably
    Accelerated Training, NeurIPS 2023.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="cd-grab", help="pair balance coordinated over all workers", cites=("cooper2023coordinating", "lu2022grab")
    )

    coordinated: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = (*Balanced.STATE, "mode", "evidence", "room", "pending", "delay")

    coordinate: str = option("auto", help="how workers agree on signs", choices=("auto", "factors", "shards", "stale"))

    def make(self) -> Balancer:
        self.mode = ""  # chosen at the first step that has a pair
        self.evidence = ""  # a hash of all signs so far
        self.room: Any = 1  # of a message: terms of one worker in one step at the most so far, or what factors need
        self.pending: list[torch.Tensor] = []  # short differences of the steps that the others have not seen yet,
        self.delay = 1  # and how many such steps go round together
        return Balancer(self.context, PAIR, self.group, self.sign, self.together, ending=self.end)

    def together(
        self, total: torch.Tensor | None, view: GradientView | None, terms: np.ndarray, decide: Decide
    ) -> tuple[torch.Tensor | None, Decided]:
        comm = self.context.comm
        if comm.size == 1:
            return alone(total, view, terms, decide)
        if total is None:
            total = self._begin(view, len(terms))
        if total is None:
            return None, NOTHING
        if self.mode == "stale":
            decided = by_stale(comm, total, view, terms, decide)
            self._keep_evidence(total.detach().cpu().numpy()[:1024].tobytes())
            return total, decided
        if self.mode == "factors":
            assert view is None or isinstance(view, Layers)
            decided, counts, room = by_factors(comm, total, view, terms, room_of(self.room), decide)
            self.room = room.plain()
        elif self.mode == "rows":
            weights = torch.as_tensor(terms, dtype=total.dtype, device=total.device)
            nothing = total.new_zeros(0, len(total))
            self.pending.append(view.vectors(weights) if view is not None and len(terms) else nothing)
            return total, self._send_pending(total, decide) if len(self.pending) >= self.delay else NOTHING
        else:
            decided, counts = by_shards(comm, total, view, terms, decide)
        return total, self._own(decided, counts)

    def _send_pending(self, total: torch.Tensor, decide: Decide) -> Decided:
        found = by_rows(self.context.comm, total, self.pending, self.room, decide)
        self.pending = []
        self.room = max(self.room, *(max(counts) for _, counts in found))
        own = [self._own(decided, counts) for decided, counts in found]
        cross = [one.cross for one in own if not math.isnan(one.cross)]
        return Decided(
            np.concatenate([one.signs for one in own]),
            np.concatenate([one.squares for one in own]),
            sum(cross) / len(cross) if cross else math.nan,
        )

    def _own(self, decided: Decided, counts: list[int]) -> Decided:
        """This worker's part of what was decided for all, which is kept as evidence."""
        self._keep_evidence(decided.signs.tobytes())
        own = [place for place, (_, w) in enumerate(turns_of(counts)) if w == self.context.rank]
        return Decided(decided.signs[own], decided.squares[own], decided.cross)

    def _begin(self, view: GradientView | None, terms: int) -> torch.Tensor | None:
        """Choose a way together and make S, at the first step in which somebody has a pair."""
        about = None
        if view is not None:
            forms = forms_of(view) if isinstance(view, Layers) else None
            needed = None if forms is None else Room(view.items, terms, forms).plain()
            steps = self.balancer.terms // max(1, terms)
            about = (terms, view.dimension, view.zeros().dtype == torch.float64, needed, steps)
        rows = [row for row in self.context.comm.gather_objects(about) if row is not None]
        most = max((row[0] for row in rows), default=0)
        if not most:
            return None
        _, dimension, double, *_ = rows[0]
        # A quarter of an epoch at the most: what waits for its sign is not in `herding` yet.
        self.delay = min(_TOGETHER, max(1, min(row[4] for row in rows) // 4))
        room = (
            None
            if any(row[3] is None for row in rows)
            else merged([room_of(row[3]) for row in rows], self.context.size)
        )
        self.mode = self._choose(most, dimension, room)
        if self.mode == "factors":
            assert room is not None
            self.room = room.plain()
            dimension = slices_of(self.context.comm, room).dimension
        flat = self.context.flat
        device = view.zeros().device if view is not None else flat.x.device if flat is not None else None
        return torch.zeros(dimension, dtype=torch.float64 if double else torch.float32, device=device)

    def _choose(self, terms: int, dimension: int, room: Room | None) -> str:
        """By the numbers that a worker sends to another in a step; no `room`: factors cannot go round."""
        if self.coordinate in ("stale", "shards"):
            return self.coordinate
        if self.signal == "forward" and self.coordinate == "auto":
            return "stale"  # a difference would take a backward pass of its own
        ways = {"shards": terms * dimension / self.context.size}
        if room is not None:
            ways["factors"] = room.items * room.width
        if self.coordinate == "factors" and room is not None:
            return "factors"
        if dimension <= _SHORT:
            ways["rows"] = 0 if terms * dimension <= _FEW else terms * dimension
            del ways["shards"]
        return min(ways, key=lambda name: ways[name])

    def _keep_evidence(self, known: bytes) -> None:
        self.evidence = hashlib.sha256(self.evidence.encode() + known).hexdigest()

    def end(self, total: torch.Tensor | None) -> Decided:
        """The last signs of an epoch, after which all workers have decided alike, or somebody's arithmetic differs and
        every order from here on is worthless.
        """
        decided = self._send_pending(total, self.balancer.decide) if self.pending and total is not None else NOTHING
        everybody = self.context.comm.gather_objects(self.evidence)
        for rank, other in enumerate(everybody):
            if other != everybody[0]:
                raise WorkerError(
                    f"worker {rank} decided other signs than worker 0 in epoch {self.balancer.number}: all workers must run the same "
                    "version on the same kind of machine; use --order id-grab where they cannot",
                    rank,
                    self.context.clock.step,
                )
        return decided
