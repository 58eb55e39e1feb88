"""What is counted, and against which goal."""

from __future__ import annotations

from dataclasses import dataclass, field


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

    def measured(self, value: float) -> None:
        self.worst = value if self.worst is None else max(self.worst, value)

    @property
    def passed(self) -> bool:
        return self.tried > 0 and self.held == self.tried


@dataclass
class Sums:
    """Rows by fault, in the order in which they were first counted."""

    rows: dict[str, Row] = field(default_factory=dict)

    def row(self, fault: str, expected: str, unit: str = "s") -> Row:
        return self.rows.setdefault(fault, Row(fault, expected, unit=unit))

    def merge(self, others: Sums) -> None:
        """Add what was counted elsewhere."""
        for other in others.rows.values():
            row = self.row(other.fault, other.expected, other.unit)
            row.tried, row.held = row.tried + other.tried, row.held + other.held
            row.failures += other.failures
            if other.worst is not None:
                row.measured(other.worst)

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows.values())

