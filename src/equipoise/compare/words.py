"""The answer in plain sentences: what wins, by how much, and why.

The time to a target is examples / (examples per second), so a choice wins by needing fewer examples (less noise, less bias), by
going through them faster (less waiting, less traffic), or both; the two factors multiply to the whole.
"""

from __future__ import annotations

import math

from .table import Criterion, Row, Spread, time_words

_SAME = 1.03  # factors below this are called equal


def sentence(rows: list[Row], measure: Criterion, reference: str) -> str:
    """`rows` are ranked; `reference` names the choice that the others are measured by, usually the first."""
    finished = [row for row in rows if row.finished]
    if not finished:
        return "Every choice failed: the table says why."
    complete = [row for row in finished if row.complete]
    if measure.until is None:
        parts = [_by_metric(finished, measure)]
    elif not complete:
        parts = [_nobody(finished, measure)]
    else:
        parts = [_winner(complete, measure, reference)]
        other = _other(complete, reference)
        if other is not None:
            parts.append(why(complete[0], other, measure))
        never = [row.name for row in finished if not row.reached]
        partly = [f"{row.name} ({row.reached} of {row.seeds})" for row in finished if 0 < row.reached < row.seeds]
        parts += [f"Not reached by {_list(never)}."] if never else []
        parts += [f"Not with every seed by {_list(partly)}."] if partly else []
    failed = [row.name for row in rows if row.failed]
    if failed:
        parts.append(f"Failed: {_list(failed)}.")
    if finished[0].seeds == 1 and len(finished) > 1:
        parts.append("One seed only: how far results spread is not known.")
    if measure.name == "samples":
        parts.append("Counted in examples: for time, describe a cluster (--cluster FILE) or use --processes.")
    return " ".join(parts)


def _winner(rows: list[Row], measure: Criterion, reference: str) -> str:
    first = rows[0]
    text = f"{first.name} reaches {measure.until} in {first.time.words()} {measure.unit}"
    if len(rows) == 1:
        return f"Only {text}."
    second = rows[1]
    if second.rank == first.rank:
        return f"{text}, and {second.name} in the same."
    if within_spread(first.time, second.time):
        text = (
            f"No clear winner: {text}, {second.name} in {second.time.words()}, which is within the spread of the seeds"
        )
    else:
        text += (
            f": {_times(second.time.mean / first.time.mean)} as fast as the next, {second.name} ({second.time.words()})"
        )
    base = next((row for row in rows[2:] if row.name == reference), None)
    if base is not None:
        text += f"; {_times(base.time.mean / first.time.mean)} as fast as {base.name} ({base.time.words()})"
    return f"{text}."


def _other(rows: list[Row], reference: str) -> Row | None:
    """Whom the winner is explained against: the reference, or the next where it wins itself or never arrives."""
    rest = rows[1:]
    return next((row for row in rest if row.name == reference), rest[0] if rest else None)


def why(first: Row, other: Row, measure: Criterion) -> str:
    """The factors between two choices that both reached the target, and where the time goes."""
    examples = other.samples.mean / first.samples.mean
    speed = other.time.mean / first.time.mean / examples
    text = f"Why: against {other.name} it needs {_fewer(examples)} examples"
    if measure.name != "samples":
        text += f" and takes them {_faster(speed)}"
    reasons = []
    if first.spent and other.spent:
        verbs = {"compute": "computes", "wait": "waits", "communicate": "communicates"}
        parts = [f"{verb} {_pair(first.spent[name], other.spent[name])} s" for name, verb in verbs.items()]
        shares = f"waiting is {first.waiting:.0%} of its time instead of {other.waiting:.0%}"
        reasons.append(f"its average worker {', '.join(parts)} ({shares})")
    if not math.isclose(other.bytes.mean, first.bytes.mean, rel_tol=_SAME - 1):
        words = [Spread(row.bytes.mean, math.nan, 1).words("bytes") for row in (first, other)]
        rounds = _pair(first.rounds.mean, other.rounds.mean)
        reasons.append(f"it sends {words[0]} instead of {words[1]}, in {rounds} rounds")
    return f"{text}: {'; '.join(reasons)}." if reasons else f"{text}."


def _pair(now: float, before: float) -> str:
    """`4.2 instead of 17`, or one number where they are alike."""
    words = [Spread(value, math.nan, 1).words() for value in (now, before)]
    return words[0] if words[0] == words[1] else f"{words[0]} instead of {words[1]}"


def _nobody(rows: list[Row], measure: Criterion) -> str:
    partly = [row for row in rows if row.reached]
    if partly:
        first = partly[0]
        return (
            f"No choice reaches {measure.until} with every seed; {first.name} does with {first.reached} of {first.seeds}, "
            f"in {first.time.words()} {measure.unit}."
        )
    first = rows[0]
    after = time_words(first.time.mean, measure)
    return f"No choice reaches {measure.until}; nearest is {first.name} with {measure.metric} {first.metric.words()} after {after}."


def _by_metric(rows: list[Row], measure: Criterion) -> str:
    first = rows[0]
    text = f"{first.name} ends with the best {measure.metric}, {first.metric.words()}"
    if len(rows) > 1:
        second = rows[1]
        close = second.rank == first.rank or within_spread(first.metric, second.metric)
        text += f"; the next, {second.name}, has {second.metric.words()}" + (": no clear winner" if close else "")
    return f"{text}. No target was set: --until accuracy=0.85 compares times."


def within_spread(one: Spread, two: Spread) -> bool:
    """Is the difference of two means smaller than two standard errors of it? Not known for single seeds: then False."""
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
