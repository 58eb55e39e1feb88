"""The result of a comparison in one or two sentences: what wins, by how much, and why.

The time to a target is examples / throughput. A choice wins because it needs fewer examples (less noise, less bias),
because its throughput is higher (less waiting, less communication), or both. The speed-up is the product of the two.
A win exceeds two standard errors over seeds, and a margin: 5 % of a time, 1 % of a metric.
"""

from __future__ import annotations

import math

from .table import Criterion, Row, Spread, format_time, two_digits

MARGIN = {"time": 0.05, "metric": 0.01}
_SAME = 1.05  # factors below this are not worth a word


def explain(rows: list[Row], criterion: Criterion, reference: str) -> str:
    """`rows` are ranked; `reference` names the baseline, usually the first choice on the command line."""
    finished = [row for row in rows if row.finished]
    if not finished:
        return "Every choice failed: the table says why."
    complete = [row for row in finished if row.complete]
    if criterion.by == "goodput":
        parts = [_by_goodput(finished, criterion, reference)]
    elif criterion.until is None:
        parts = [_by_metric(finished, criterion)]
    elif not complete:
        parts = [_none_complete(finished, criterion)]
    else:
        parts = [_by_time(complete, criterion, reference)]
        missed = [row.name for row in finished if not row.reached]
        partial = [f"{row.name} ({row.reached} of {row.seeds})" for row in finished if 0 < row.reached < row.seeds]
        parts += [f"Target not reached by {_list(missed)}."] if missed else []
        parts += [f"Target reached with some seeds only by {_list(partial)}."] if partial else []
    failed = [row.name for row in rows if row.failed]
    if failed:
        parts.append(f"Failed: {_list(failed)}.")
    if finished[0].seeds == 1 and len(finished) > 1:
        parts.append("One seed only: the spread over seeds is unknown.")
    if criterion.name == "samples":
        parts.append("Measured in examples: to compare times, describe a cluster (--cluster FILE) or use --processes.")
    return " ".join(parts)


def _by_time(rows: list[Row], criterion: Criterion, reference: str) -> str:
    first, rest = rows[0], rows[1:]
    time = f"{criterion.until} in {two_digits(first.time.mean)} {criterion.unit}"
    if not rest:
        return f"Only {first.name} reaches {time}."
    tied = [row for row in rows if row is first or not_apart(first.time, row.time, MARGIN["time"])]
    if len(tied) > 1:
        return _tie(tied, str(criterion.until), [row.time for row in tied], criterion.unit)
    base = next((row for row in rest if row.name == reference), None)
    others = [rest[0], *([base] if base is not None and base is not rest[0] else [])]
    factors = [f"{two_digits(row.time.mean / first.time.mean)} times as fast as {row.name}" for row in others]
    return f"{first.name} wins: {time}, {_list(factors)}. {reasons(first, base or rest[0], criterion)}"


def reasons(first: Row, other: Row, criterion: Criterion) -> str:
    """The factors between two choices that both reached the target: examples, and time for each of them."""
    examples = other.samples.mean / first.samples.mean
    if criterion.name == "samples":
        return f"It needs {two_digits(examples)} times fewer examples."
    pace = other.time.mean / first.time.mean / examples
    words = []
    if examples >= _SAME:
        words.append(f"needs {two_digits(examples)} times fewer examples")
    if pace >= _SAME:
        words.append(f"processes examples {two_digits(pace)} times as fast")
    if examples < 1 / _SAME:
        words.append(f"needs {two_digits(1 / examples)} times as many examples")
    if pace < 1 / _SAME:
        words.append(f"takes {two_digits(1 / pace)} times as long for each")
    if not words:  # each factor is small, their product is not
        return f"Compared with {other.name} it needs a few examples less, and a little less time for each."
    apart = "but" if (examples < 1 / _SAME) != (pace < 1 / _SAME) else "and"
    return f"Compared with {other.name} it {f' {apart} '.join(words)}."


def _tie(rows: list[Row], what: str, values: list[Spread], unit: str) -> str:
    numbers = _list([two_digits(value.mean) for value in values])
    why = "within the spread over seeds" if within_spread(values[0], values[-1]) else f"within {MARGIN['time']:.0%}"
    return f"No clear winner: {_list([row.name for row in rows])} reach {what} in {numbers} {unit}, {why}."


def _none_complete(rows: list[Row], criterion: Criterion) -> str:
    partial = [row for row in rows if row.reached]
    if partial:
        first = partial[0]
        return (
            f"No choice reaches {criterion.until} with every seed; "
            f"{first.name} does with {first.reached} of {first.seeds}, "
            f"in {two_digits(first.time.mean)} {criterion.unit}."
        )
    first = rows[0]
    after = format_time(first.time.mean, criterion)
    best = f"{criterion.metric} {first.metric.format()} after {after}"
    return f"No choice reaches {criterion.until}; the closest is {first.name} with {best}."


def _by_metric(rows: list[Row], criterion: Criterion) -> str:
    first = rows[0]
    text = f"{first.name} ends with the best {criterion.metric}, {first.metric.format()}"
    if len(rows) > 1:
        second = rows[1]
        if not_apart(first.metric, second.metric, MARGIN["metric"]):
            own, others = (f"{row.name} ends with {row.metric.format()}" for row in rows[:2])
            text = f"No clear winner by {criterion.metric}: {own}, {others}"
        else:
            text += f"; the next, {second.name}, has {second.metric.format()}"
    return f"{text}. No target was set: with --until accuracy=0.85 the times to it are compared."


def _by_goodput(rows: list[Row], criterion: Criterion, reference: str) -> str:
    first, rest = rows[0], rows[1:]
    unit = f"examples per {criterion.unit} that count"
    if not rest:
        return f"{first.name} has a goodput of {two_digits(first.goodput.mean)} {unit}."
    if not_apart(first.goodput, rest[0].goodput, MARGIN["time"]):
        numbers = _list([two_digits(row.goodput.mean) for row in rows[:2]])
        return f"No clear winner: {_list([row.name for row in rows[:2]])} have a goodput of {numbers} {unit}."
    base = next((row for row in rest[1:] if row.name == reference), None)
    others = [rest[0], *([base] if base is not None else [])]
    factors = [f"{two_digits(first.goodput.mean / row.goodput.mean)} times that of {row.name}" for row in others]
    return f"{first.name} has the highest goodput: {two_digits(first.goodput.mean)} {unit}, {_list(factors)}."


def not_apart(one: Spread, two: Spread, margin: float) -> bool:
    """Do two means differ by less than the margin, or by less than their spread?"""
    close = abs(one.mean - two.mean) <= margin * max(abs(one.mean), abs(two.mean))
    return close or within_spread(one, two)


def within_spread(one: Spread, two: Spread) -> bool:
    """Whether two means differ by less than two standard errors. False for single seeds, where the error is unknown."""
    if min(one.size, two.size) < 2:
        return False
    error = math.sqrt(one.deviation**2 / one.size + two.deviation**2 / two.size)
    return abs(one.mean - two.mean) < 2.0 * error


def _list(names: list[str]) -> str:
    if len(names) > 2 and any("," in name for name in names):  # such as "diloco, int4"
        return f"{'; '.join(names[:-1])}; and {names[-1]}"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
