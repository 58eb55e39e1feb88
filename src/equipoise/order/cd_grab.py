from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from ..core.errors import WorkerError
from ..core.method import Metadata, option
from ..signal.base import GradientView
from ..signal.factor_view import FactorView
from .balanced_order import BalancedOrder
from .builder import Builder
from .coordinate import Coordinated, by_factors, by_rows, by_shards, by_stale, interleaved
from .epoch_builder import EpochBuilder
from .factor_messages import BufferLayout, layer_layouts, local_slices, merge_layouts
from .sign_terms import NO_TERMS, PAIR, ChooseSign, Floats, TermSigns, sign_locally

_SHORT = 1 << 14  # numbers of a vector that is sent to every worker as it is,
_FEW = 1 << 12  # and of all vectors of a step, below which no other way is considered
_TOGETHER = 8  # most steps whose short vectors share one message


class FirstStep(NamedTuple):
    """What a worker has in the first step with a pair: from this all workers choose the same way."""

    terms: int
    dimension: int
    double: bool
    layout: BufferLayout | None  # None where factors cannot be exchanged
    steps: int  # in an epoch


@dataclass
class CDGraB(BalancedOrder):
    """PairBalance over all workers: one running sum, the workers' pairs in sequence, each keeps its own examples.

        for every pair of steps, for w = 1..W:  v = g_w(2k-1) - g_w(2k),  s = -sign <S, v>,  S <- S + s v,
                                                worker w's pair goes to the two ends of its next epoch

    The sum over workers stays balanced, so its floor does not grow with the world size (`IDGraB`'s grows like its
    square root). By default rank 0 does this when a learned epoch ends, on sketches that it receives once (`sweeps`).
    With `signal = exact` or `sweeps = 1` workers do it in every step, without a server and without a gather of
    gradients. `coordinate`:

    - factors: workers exchange the layers' inputs and output gradients, and every worker holds a slice of S. Exact;
    - shards: every worker holds a slice of S and receives that slice of the differences. Exact, for any layers;
    - stale: all workers choose signs against S as it was before the step; one all-reduce per step. Not exact;
    - auto: the cheaper exact one, by the bytes of the first step. Sketches are short and are sent to every worker,
      those of eight steps in one message: signs are needed only at the end of an epoch, and are the same.

    All workers compute all signs then; a hash of them is compared after every epoch. With one worker it is
    `PairBalance`.

    Reference: Cooper, Guo, Pham, Yuan, Ruan, Lu, De Sa, Coordinating Distributed Example Orders for Provably
    Accelerated Training, NeurIPS 2023.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="cd-grab", help="pair balance coordinated over all workers", cites=("cooper2023coordinating", "lu2022grab")
    )

    coordinated: ClassVar[bool] = True
    LATE: ClassVar[dict[str, type]] = {**BalancedOrder.LATE, "layout": dict}
    STATE: ClassVar[tuple[str, ...]] = (
        *BalancedOrder.STATE,
        "mode",
        "digest",
        "capacity",
        "layout",
        "pending",
        "delay",
    )

    coordinate: str = option("auto", help="how workers agree on signs", choices=("auto", "factors", "shards", "stale"))

    @property
    def streams(self) -> bool:
        return self.coordinate != "auto"

    def make_builder(self) -> Builder:
        self.mode = ""  # chosen at the first step with a pair
        self.digest = ""  # a hash of all signs so far
        self.capacity = 1  # mode rows: most terms of one worker in one step so far
        self.layout: dict[str, Any] | None = None  # mode factors: of the message, as `BufferLayout.to_dict` gives it
        self.pending: list[torch.Tensor] = []  # mode rows: differences of the steps that have not been sent yet,
        self.delay = 1  # and how many steps share a message
        if self.chosen.sweeps > 1:
            return self.keep(PAIR)
        every, together = self.chosen.every, self.sign_together
        return EpochBuilder(self.context, PAIR, self.group, every, self.sign, together, end_epoch=self.end_epoch)

    def agreed_on(self) -> str:
        return self.digest

    def sign_together(
        self, total: torch.Tensor | None, view: GradientView | None, terms: Floats, choose_sign: ChooseSign
    ) -> tuple[torch.Tensor | None, TermSigns]:
        """The signer of the builder: this worker's signs, in the sequence over all workers."""
        comm = self.context.comm
        if comm.size == 1:
            return sign_locally(total, view, terms, choose_sign)
        if total is None:
            total = self._begin(view, len(terms))
        if total is None:
            return None, NO_TERMS
        if self.mode == "stale":
            signed = by_stale(comm, total, view, terms, choose_sign)
            self._update_digest(total[:1024].detach().cpu().numpy().tobytes())
            return total, signed
        if self.mode == "rows":
            weights = torch.as_tensor(terms, dtype=total.dtype, device=total.device)
            no_rows = total.new_zeros(0, len(total))
            self.pending.append(view.vectors(weights) if view is not None and len(terms) else no_rows)
            return total, self._send_pending(total, choose_sign) if len(self.pending) >= self.delay else NO_TERMS
        if self.mode == "factors":
            assert self.layout is not None
            assert view is None or isinstance(view, FactorView)
            layout = BufferLayout.from_dict(self.layout)
            coordinated, layout = by_factors(comm, total, view, terms, layout, choose_sign)
            self.layout = layout.to_dict()
        else:
            coordinated = by_shards(comm, total, view, terms, choose_sign)
        return total, self._own(coordinated)

    def _send_pending(self, total: torch.Tensor, choose_sign: ChooseSign) -> TermSigns:
        steps = by_rows(self.context.comm, total, self.pending, self.capacity, choose_sign)
        self.pending = []
        self.capacity = max(self.capacity, *(max(step.counts) for step in steps))
        own = [self._own(step) for step in steps]
        cross = [signed.cross for signed in own if not math.isnan(signed.cross)]
        return TermSigns(
            np.concatenate([signed.signs for signed in own]),
            np.concatenate([signed.squares for signed in own]),
            sum(cross) / len(cross) if cross else math.nan,
        )

    def _own(self, coordinated: Coordinated) -> TermSigns:
        """This worker's part of the signs of all workers, which go into the digest."""
        signed = coordinated.signed
        self._update_digest(signed.signs.tobytes())
        own = [index for index, (_, w) in enumerate(interleaved(coordinated.counts)) if w == self.context.rank]
        return TermSigns(signed.signs[own], signed.squares[own], signed.cross)

    def _begin(self, view: GradientView | None, terms: int) -> torch.Tensor | None:
        """At the first step in which any worker has a pair: choose a mode together and allocate S."""
        own = None
        if view is not None:
            layers = layer_layouts(view) if isinstance(view, FactorView) else None
            needed = None if layers is None else BufferLayout(view.items, terms, layers)
            assert isinstance(self.builder, EpochBuilder)
            steps = self.builder.terms // max(1, terms)
            own = FirstStep(terms, view.dimension, view.zeros().dtype == torch.float64, needed, steps)
        rows: list[FirstStep] = [row for row in self.context.comm.gather_objects(own) if row is not None]
        most = max((row.terms for row in rows), default=0)
        if not most:
            return None
        dimension, double = rows[0].dimension, rows[0].double
        # A quarter of an epoch at the most: terms whose signs are pending are not in `herding` yet.
        self.delay = min(_TOGETHER, max(1, min(row.steps for row in rows) // 4))
        layouts = [row.layout for row in rows if row.layout is not None]
        alike = len({len(layout.layers) for layout in layouts}) == 1
        layout = merge_layouts(layouts, self.context.size) if alike and len(layouts) == len(rows) else None
        self.mode = self._choose(most, dimension, layout)
        if self.mode == "factors":
            assert layout is not None
            self.layout = layout.to_dict()
            dimension = local_slices(self.context.comm, layout).dimension
        flat = self.context.flat
        device = view.zeros().device if view is not None else flat.x.device if flat is not None else None
        return torch.zeros(dimension, dtype=torch.float64 if double else torch.float32, device=device)

    def _choose(self, terms: int, dimension: int, layout: BufferLayout | None) -> str:
        """By the numbers that one worker sends to another in a step. No `layout`: factors cannot be exchanged."""
        if self.coordinate in ("stale", "shards"):
            return self.coordinate
        if self.signal == "forward" and self.coordinate == "auto":
            return "stale"  # each difference would take a backward pass of its own
        sent = {"shards": terms * dimension / self.context.size}
        if layout is not None:
            sent["factors"] = layout.items * layout.width
        if self.coordinate == "factors" and layout is not None:
            return "factors"
        if dimension <= _SHORT:
            sent["rows"] = 0 if terms * dimension <= _FEW else terms * dimension
            del sent["shards"]
        return min(sent, key=lambda mode: sent[mode])

    def _update_digest(self, data: bytes) -> None:
        self.digest = hashlib.sha256(self.digest.encode() + data).hexdigest()

    def end_epoch(self, total: torch.Tensor | None) -> TermSigns:
        """The last signs of an epoch; then compare the digests of all workers.

        Where they differ, the workers' arithmetic differs and every order from here on is worthless.
        """
        signed = NO_TERMS
        if self.pending and total is not None:
            assert isinstance(self.builder, EpochBuilder)
            signed = self._send_pending(total, self.builder.choose_sign)
        digests = self.context.comm.gather_objects(self.digest)
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise WorkerError(
                    f"worker {rank} computed other signs than worker 0 in epoch {self.builder.number}: all workers "
                    "must run the same version on the same kind of machine; use --order id-grab where they cannot",
                    rank,
                    self.context.clock.step,
                )
        return signed
