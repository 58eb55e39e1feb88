"""What is counted, and against which goal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass
class Row:
    """One line of the table: so many of one kind of fault, and how many of them ended as they should."""

    fault: str
    expected: str
    tried: int = 0
    held: int = 0
    worst: float | None = None  # seconds, or whatever `unit` says
    unit: str = "s"
    failures: list[str] = field(default_factory=list)  # what to look at: seed, method, what was said

    def count(self, held: bool, what: str = "") -> bool:
        self.tried += 1
        self.held += held
        if not held:
            self.failures.append(what)
        return held

    def measured(self, value: float, *, worse: Callable[[float, float], float] = max) -> None:
        self.worst = value if self.worst is None else worse(self.worst, value)

    @property
    def passed(self) -> bool:
        return self.tried > 0 and self.held == self.tried


@dataclass
class Sums:
    """Rows by fault, in the order in which they were first counted."""

    rows: dict[str, Row] = field(default_factory=dict)
    seconds: float = 0.0  # that it took
    patience: list[float] = field(default_factory=list)  # by how much limits of time were longer, in each part

    def dump(self) -> str:
        rows = [asdict(row) for row in self.rows.values()]
        return json.dumps({"rows": rows, "seconds": self.seconds, "patience": self.patience}, indent=1)

    @classmethod
    def parse(cls, text: str) -> Sums:
        table = json.loads(text)
        return cls({row["fault"]: Row(**row) for row in table["rows"]}, table["seconds"], table["patience"])

    def row(self, fault: str, expected: str, unit: str = "s") -> Row:
        return self.rows.setdefault(fault, Row(fault, expected, unit=unit))

    def merge(self, others: Sums) -> None:
        """Add what was counted elsewhere."""
        self.seconds += others.seconds
        self.patience += others.patience
        for other in others.rows.values():
            row = self.row(other.fault, other.expected, other.unit)
            row.tried, row.held = row.tried + other.tried, row.held + other.held
            row.failures += other.failures
            if other.worst is not None:
                row.measured(other.worst)

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows.values())

    def summary(self) -> str:
        """In words, with the failures at hand to look at."""
        failures = [f"\n  {row.fault}: {what}" for row in self.rows.values() for what in row.failures[:10]]
        return "as expected" if self.passed else "NOT as expected" + "".join(failures)
