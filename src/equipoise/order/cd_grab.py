from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..errors import WorkerError
from ..method import option
from ..signal.base import View
from ..signal.layers import Layers
from .balance import NOTHING, Decide, Decided, alone
from .balanced import Balanced
from .balancer import PAIR, Balancer
from .coordinate import by_factors, by_rows, by_shards, by_stale, packed, turns_of

_SHORT = 1 << 14  # numbers of a vector that is simply sent to everybody


@dataclass
class CDGraB(Balanced):
    """PairBalance over all workers: one running sum, the workers' pairs in sequence, each keeps its own examples.

        for every pair of steps, for w = 1..W:  v = g_w(2k-1) - g_w(2k),  s = -sign <S, v>,  S <- S + s v,
                                                worker w's pair goes to the two ends of its next epoch

    The sum over workers stays balanced, so its floor does not grow with their number (`IDGraB`'s grows like its
    square root). There is no server and no gather of gradients. `coordinate`:

    - factors: the layers' inputs and output gradients go round; S is moved by one sum over workers. Exact;
    - shards: every worker holds a slice of S and gets that slice of the differences. Exact; best for small batches;
    - stale: all workers decide against the S of the step's beginning; one sum a step. Not exact;
    - auto: the cheaper exact one, by the bytes of the first step. Sketches are short and are simply sent to everybody.

    All workers decide all signs; a hash of them is compared after every epoch. With one worker it is `PairBalance`.

    Reference: Cooper, Guo, Pham, Yuan, Ruan, Lu, De Sa, Coordinating Distributed Example Orders for Provably
    Accelerated Training, NeurIPS 2023.
    """

    coordinated: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = (*Balanced.STATE, "mode", "evidence", "room")

    coordinate: str = option("auto", help="how workers agree on signs", choices=("auto", "factors", "shards", "stale"))

    def make(self) -> Balancer:
        self.mode = ""  # chosen at the first step that has a pair
        self.evidence = ""  # a hash of all signs so far
        self.room = 1  # terms of one worker in one step, at the most so far
        return Balancer(self.context, PAIR, self.group, self.sign, self.together, ending=self.compare)

    def together(
        self, total: torch.Tensor | None, view: View | None, terms: np.ndarray, decide: Decide
    ) -> tuple[torch.Tensor | None, Decided]:
        comm = self.context.comm
        if comm.size == 1:
            return alone(total, view, terms, decide)
        if self.mode == "rows" and total is not None:
            return total, self._own(*by_rows(comm, total, view, terms, self.room, decide))
        whole = isinstance(view, Layers) and not view.regions()
        width = packed(view).shape[1] if isinstance(view, Layers) and whole else 0
        about = [0] * 5
        if view is not None:
            kind = 1 + isinstance(view, Layers) + 2 * (view.zeros().dtype == torch.float64)
            about = [view.items, len(terms), view.dimension, width, kind]
        headers = comm.gather(torch.tensor(about, dtype=torch.int64)).tolist()
        counts = [row[1] for row in headers]
        if not any(counts):
            return total, NOTHING
        busy = [row for row in headers if row[0]]
        items, dimension, kind = max(r[0] for r in busy), busy[0][2], busy[0][4]
        widths = {row[3] for row in busy}
        if total is None:
            dtype = torch.float64 if kind > 2 else torch.float32
            total = view.zeros() if view is not None else torch.zeros(dimension, dtype=dtype)
        if not self.mode:
            self.mode = self._choose(kind % 2 == 0, items, max(counts), dimension, max(widths) if min(widths) else 0)
        decided = self._decided(total, view, terms, counts, items, widths, decide)
        if self.mode == "stale":
            self._keep_evidence(total.detach().cpu().numpy()[:1024].tobytes())
            return total, decided
        return total, self._own(decided, counts)

    def _own(self, decided: Decided, counts: list[int]) -> Decided:
        """This worker's part of what all have decided."""
        self.room = max(self.room, *counts)
        self._keep_evidence(decided.signs.tobytes())
        own = [place for place, (_, w) in enumerate(turns_of(counts)) if w == self.context.rank]
        return Decided(decided.signs[own], decided.squares[own], decided.cross)

    def _choose(self, layers: bool, items: int, terms: int, dimension: int, width: int) -> str:
        """By the numbers that a worker sends in a step; `width` 0: there are layers whose factors cannot go round."""
        if self.coordinate in ("stale", "shards"):
            return self.coordinate
        if dimension <= _SHORT and (self.coordinate == "auto" or not layers):
            return "rows"
        others = self.context.size - 1
        factors = items * width * others + 2 * dimension * others / self.context.size
        shards = terms * dimension * others / self.context.size
        return "factors" if width and (self.coordinate == "factors" or factors < shards) else "shards"

    def _decided(
        self,
        total: torch.Tensor,
        view: View | None,
        terms: np.ndarray,
        counts: list[int],
        items: int,
        widths: set[int],
        decide: Decide,
    ) -> Decided:
        comm = self.context.comm
        if self.mode == "stale":
            return by_stale(comm, total, view, terms, decide)
        if self.mode == "rows":
            return by_rows(comm, total, view, terms, max(counts), decide)[0]
        if self.mode == "factors":
            if len(widths) == 1 and min(widths):
                assert view is None or isinstance(view, Layers)
                return by_factors(comm, total, view, terms, counts, items, min(widths), decide)
            # Sentences of other lengths on other workers: this step goes by shards, and S is put together again.
            decided = by_shards(comm, total, view, terms, counts, decide)
            cuts = [len(total) * r // comm.size for r in range(comm.size + 1)]
            for owner in range(comm.size):
                comm.broadcast(total[cuts[owner] : cuts[owner + 1]], owner)
            return decided
        return by_shards(comm, total, view, terms, counts, decide)

    def _keep_evidence(self, known: bytes) -> None:
        self.evidence = hashlib.sha256(self.evidence.encode() + known).hexdigest()

    def compare(self) -> None:
        """All workers have decided alike, or somebody's arithmetic differs and every order from here on is
        worthless.
        """
        everybody = self.context.comm.gather_objects(self.evidence)
        for rank, other in enumerate(everybody):
            if other != everybody[0]:
                raise WorkerError(
                    f"worker {rank} decided other signs than worker 0 in epoch {self.balancer.number}: all workers must run the same "
                    "version on the same kind of machine; use --order id-grab where they cannot",
                    rank,
                    self.context.clock.step,
                )
