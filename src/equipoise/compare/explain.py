"""The result of a comparison in sentences: what wins, by how much, and why.

The time to a target is examples / throughput. A choice wins because it needs fewer examples (less noise, less bias),
because its throughput is higher (less waiting, less communication), or both. The speed-up is the product of the two.
"""

from __future__ import annotations

import math

from .table import Criterion, Row, Spread, format_time

_SAME = 1.03  # factors below this are called equal


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
        parts = [_winner(complete, criterion, reference)]
        opponent = _opponent(complete, reference)
        if opponent is not None:
            parts.append(reasons(complete[0], opponent, criterion))
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


def _winner(rows: list[Row], criterion: Criterion, reference: str) -> str:
    first = rows[0]
    text = f"{first.name} reaches {criterion.until} in {first.time.format()} {criterion.unit}"
    if len(rows) == 1:
        return f"Only {text}."
    second = rows[1]
    if second.rank == first.rank:
        return f"{text}; {second.name} needs the same time."
    if within_spread(first.time, second.time):
        text = f"No clear winner: {text}, {second.name} in {second.time.format()}, within the spread over seeds"
    else:
        factor = _times(second.time.mean / first.time.mean)
        text += f": {factor} as fast as the next, {second.name} ({second.time.format()})"
    base = next((row for row in rows[2:] if row.name == reference), None)
    if base is not None:
        text += f"; {_times(base.time.mean / first.time.mean)} as fast as {base.name} ({base.time.format()})"
    return f"{text}."


def _opponent(rows: list[Row], reference: str) -> Row | None:
    """What the winner is compared with: the baseline or, if that is the winner or misses the target, the runner-up."""
    rest = rows[1:]
    return next((row for row in rest if row.name == reference), rest[0] if rest else None)


def reasons(first: Row, other: Row, criterion: Criterion) -> str:
    """The factors between two choices that both reached the target, and where their time goes."""
    examples = other.samples.mean / first.samples.mean
    speed = other.time.mean / first.time.mean / examples
    text = f"Why: compared with {other.name} it needs {_fewer(examples)} examples"
    if criterion.name != "samples":
        text += f" and processes them {_faster(speed)}"
    details = []
    if first.spent and other.spent:
        verbs = {"compute": "computes", "wait": "waits", "communicate": "communicates"}
        parts = [f"{verb} {_pair(first.spent[name], other.spent[name])} s" for name, verb in verbs.items()]
        shares = f"waiting is {first.waiting:.0%} of its time instead of {other.waiting:.0%}"
        details.append(f"its average worker {', '.join(parts)} ({shares})")
    if not math.isclose(other.bytes.mean, first.bytes.mean, rel_tol=_SAME - 1):
        words = [Spread(row.bytes.mean, math.nan, 1).format("bytes") for row in (first, other)]
        rounds = _pair(first.rounds.mean, other.rounds.mean)
        details.append(f"it sends {words[0]} instead of {words[1]}, in {rounds} rounds")
    return f"{text}: {'; '.join(details)}." if details else f"{text}."


def _pair(now: float, before: float) -> str:
    """`4.2 instead of 17`, or one number if both look the same."""
    words = [Spread(value, math.nan, 1).format() for value in (now, before)]
    return words[0] if words[0] == words[1] else f"{words[0]} instead of {words[1]}"


def _none_complete(rows: list[Row], criterion: Criterion) -> str:
    partial = [row for row in rows if row.reached]
    if partial:
        first = partial[0]
        return (
            f"No choice reaches {criterion.until} with every seed; "
            f"{first.name} does with {first.reached} of {first.seeds}, in {first.time.format()} {criterion.unit}."
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
        close = second.rank == first.rank or within_spread(first.metric, second.metric)
        text += f"; the next, {second.name}, has {second.metric.format()}" + (": no clear winner" if close else "")
    return f"{text}. No target was set: with --until accuracy=0.85 the times to it are compared."


def _by_goodput(rows: list[Row], criterion: Criterion, reference: str) -> str:
    first = rows[0]
    text = f"{first.name} has the highest goodput: {first.goodput.format()} examples per {criterion.unit} that count"
    if len(rows) > 1:
        second = rows[1]
        factor = _times(first.goodput.mean / second.goodput.mean)
        close = second.rank == first.rank or within_spread(first.goodput, second.goodput)
        text += f"; the next, {second.name}, has {second.goodput.format()}"
        text += ": no clear winner" if close else f" ({factor} as much)"
    base = next((row for row in rows[2:] if row.name == reference), None)
    if base is not None:
        factor = _times(first.goodput.mean / base.goodput.mean)
        text += f"; {base.name} has {base.goodput.format()} ({factor} as much)"
    return f"{text}."


def within_spread(one: Spread, two: Spread) -> bool:
    """Whether two means differ by less than two standard errors. False for single seeds, where the error is unknown."""
    if min(one.size, two.size) < 2:
        return False
    error = math.sqrt(one.deviation**2 / one.size + two.deviation**2 / two.size)
    return abs(one.mean - two.mean) < 2.0 * error


def _times(factor: float) -> str:
    return (
        f"{factor:.2g} times" if factor >= 9.95 else f"{factor:.1f} times" if factor >= 1.95 else f"{factor:.2f} times"
    )


def _fewer(factor: float) -> str:
    if factor >= _SAME:
        return f"{_times(factor)} fewer"
    return f"{_times(1 / factor)} as many" if factor <= 1 / _SAME else "as many"


def _faster(factor: float) -> str:
    if factor >= _SAME:
        return f"{_times(factor)} as fast"
    return f"{_times(1 / factor)} slower" if factor <= 1 / _SAME else "as fast"


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
