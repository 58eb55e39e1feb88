from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..core.errors import UserError
from ..core.method import Metadata, option
from ..data.view import MODEL, DatasetView
from .base import Partition
from .blocks import Division, blocks_with_notes_logged
from .capacity import SPEEDS, check_speeds_option, checked_speeds, known_speeds
from .strata import strata
from .stratified import Stratified

if TYPE_CHECKING:
    from .engine.greedy import GreedyConfig


@dataclass
class Submodular(Partition):
    """Blocks in proportion to the workers' speeds, exactly balanced by class, each with the features of all the data.

    Every class V_l is assigned on its own, C_lj = |V_l| r_j / sum(r) examples (rounded) to worker j:

        j = argmin f(A_j) over blocks that are not full (rule "paper"), or argmin (|A_j| + 1/2) / C_lj (rule "fill")
        A_j <- A_j + argmax_v f(A_j + v)

    with f one of
        facility    sum_u max_{v in A} s(u, v)
        graph-cut   sum_{V, A} s - lam sum_{A, A} s; "size-aware" is lam = |V_l| / 2 C_lj, for which f is minus the
                    squared MMD between A and V_l
        herding     the greedy choice for the same aim: the example where A is least dense compared with V_l
        saturated   sum_u min(sum_{v in A} s(u, v), alpha C_lj / |V_l| sum_V s(u, .))
        feature     sum_d sqrt(sum_{v in A} x_{v, d})

    The paper's rule gives slow workers the most representative examples and fast workers the remaining ones, so "auto"
    uses it for equal speeds only. Herding gave the smallest MMD on all data we measured; facility is the paper's
    choice. `polish` is local search: random swaps that lower the sum of squared MMDs. The kernel of one class takes
    2 |V_l|^2 bytes; larger classes are split into random chunks of `chunk`, or use a graph of the `neighbours` nearest.
    Reference: RCD-SGD: Resource-Constrained Distributed SGD in Heterogeneous Environment via Submodular Partitioning,
    2022 (arXiv 2211.00839). Fill rule, size-aware cut, herding, polish and controlled rounding are additions.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="submodular",
        help="proportional to speeds, balanced by class, features like all the data",
        cites=("he2023rcdsgd",),
    )

    speeds: list[float] | str | None = option(None, help=SPEEDS, least=0)
    objective: str = option(
        "facility",
        help="what makes a block good",
        choices=("facility", "graph-cut", "herding", "feature", "saturated"),
    )
    rule: str = option("auto", help="which worker receives an example next", choices=("auto", "paper", "fill"))
    features: Any = option(
        "inputs",
        help="inputs, bag (word counts), model (its last layer after the first epoch), a .npy file, "
        "package.module:function; in Python also an array or eq.features...",
    )
    kernel: str = option("rbf", help="similarity", choices=("rbf", "cosine"))
    gamma: float | str = option(
        "median", help="of rbf, exp(-gamma d^2): a number, or 1 / median d^2 of the class", above=0
    )
    lam: float | str = option("size-aware", help="of graph-cut: a number (the paper: 1), or size-aware", least=0)
    alpha: float = option(1.0, help="of saturated: part of the proportional share that counts", above=0)
    polish: int = option(0, help="random swaps tried per example afterwards; 20 is plenty", least=0)
    chunk: int = option(5000, help="most examples of a class that are assigned together", least=2, most=32768)
    neighbours: int = option(
        0, help="use similarities to this many nearest neighbours only, for very large classes; 0: to all", least=0
    )
    bins: int = option(10, help="groups of real-valued targets", least=1)
    remeasure: int = option(0, help="epochs between new measurements of speeds; 0: only at the start", least=0)
    engine: str = option("incremental", help="how gains are computed", choices=("incremental", "lazy", "naive"))

    def check(self) -> None:
        from_name = isinstance(self.features, str) or callable(self.features)
        if not from_name and not hasattr(self.features, "array"):
            from ..data.features import Given

            if not hasattr(self.features, "__array__") and not isinstance(self.features, (list, tuple)):
                raise UserError(f"features of type {type(self.features).__name__}: pass one row of numbers per example")
            self.features = Given(self.features)
        check_speeds_option(self.speeds)
        for name, word in (("gamma", "median"), ("lam", "size-aware")):
            value = getattr(self, name)
            if isinstance(value, str) and value != word:
                raise UserError(f"{name} = {value!r}: takes a number or {word!r}")
        if self.objective == "herding" and self.rule == "paper":
            raise UserError("rule 'paper' compares values of f and herding has none: use rule='fill'")
        if self.objective == "herding" and self.engine == "lazy":
            raise UserError("engine 'lazy' needs diminishing gains and herding's are not: use engine='incremental'")
        if self.neighbours and self.objective not in ("facility", "graph-cut"):
            raise UserError(f"neighbours works with facility and graph-cut, not {self.objective}: use chunk instead")
        if self.features == MODEL and self.remeasure:
            raise UserError("features = 'model' divides once, after the first epoch: set remeasure to 0")
        if self.neighbours and self.objective == "graph-cut" and isinstance(self.lam, str):
            raise UserError("neighbours with graph-cut needs a number for lam: 0.5 keeps it monotone, the paper has 1")

    def greedy_config(self, speeds: np.ndarray) -> GreedyConfig:
        """The options as the greedy algorithm takes them, with `auto` resolved."""
        from .engine.greedy import GreedyConfig

        # Values of a size-aware f are not comparable between blocks of different sizes, herding has none.
        comparable = self.objective != "herding" and not (self.objective == "graph-cut" and isinstance(self.lam, str))
        even = bool((speeds == speeds[0]).all())
        fill = self.rule == "fill" or (self.rule == "auto" and not (even and comparable))
        gamma = None if isinstance(self.gamma, str) else self.gamma
        return GreedyConfig(self.objective, fill, self.kernel, gamma, self.lam, self.alpha, self.engine)

    def plan(self, view: DatasetView, workers: int, rng: np.random.Generator) -> Division:
        """The blocks, with counts, values and notes."""
        from ..data.features import feature_array
        from .engine.partition_by_class import Limits, partition_by_class

        speeds = checked_speeds(known_speeds(self.speeds), workers)
        groups, notes = strata(view, self.bins, workers)
        features = feature_array(view, self.features)
        limits = Limits(self.chunk, self.neighbours, self.polish)
        config, seed = self.greedy_config(speeds), int(rng.integers(2**63))
        division = partition_by_class(features, groups, speeds, config, limits, seed)
        division.notes = notes + division.notes
        return division

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        if self.features == MODEL:  # until there is one
            return Stratified(speeds=self.speeds, bins=self.bins).split(view, workers, rng)
        return blocks_with_notes_logged(self.plan(view, workers, rng))

    def divide(self, x: Any, y: Any = None, workers: int | None = None, seed: int = 0) -> Division:
        """Partition arrays without training: rows `x`, targets `y` (any kind, or none). Blocks may be empty here."""
        speeds = known_speeds(self.speeds)
        count = len(checked_speeds(speeds, workers))
        return self.plan(view_of(x, y), count, np.random.default_rng([seed, 71]))


def view_of(x: Any, y: Any = None) -> DatasetView:
    """The view of a data set given as arrays."""
    from ..data.source import Source

    rows = np.asarray(x)
    if y is None:
        return DatasetView(len(rows), None, (rows,))
    values = np.asarray(y)
    if len(values) != len(rows):
        raise UserError(f"{len(rows)} rows but {len(values)} targets: give one per example")
    if len(rows) == 0:
        raise UserError("no examples: there is nothing to partition")
    return Source((rows, values)).view()
