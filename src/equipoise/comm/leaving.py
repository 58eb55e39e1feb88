"""All workers leave their loops together, or one of them says that the numbers of steps differ.

Not by a collective: another worker may be in one of a further step. Each worker leaves its number of steps in the
store, and looks there and at the heartbeats of those who have not.
"""

from __future__ import annotations

import time

from ..core.errors import UnevenSteps
from .heartbeat import Heartbeat

_LOOK = 0.01  # seconds between looks


def leave_together(beat: Heartbeat, number: int, steps: int, timeout: float) -> bool:
    """Return when all workers have left loop `number` of this group; False if somebody is missing after `timeout`."""
    keys = [f"equipoise/left/{number}/{rank}" for rank in range(beat.size)]
    beat.store.set(keys[beat.rank], str(steps))
    first, until = beat.read(), time.monotonic() + timeout
    while not beat.store.check(keys):
        for rank, (then, now) in enumerate(zip(first, beat.read(), strict=True)):
            # A beat from before this loop tells of the steps of another one.
            fresh = now is not None and then is not None and now.beats > then.beats
            if fresh and now.step > steps and not beat.store.check([keys[rank]]):  # type: ignore[union-attr]
                raise UnevenSteps.between(beat.rank, steps, rank, now.step)  # type: ignore[union-attr]
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK)
    refuse_uneven({rank: int(beat.store.get(key)) for rank, key in enumerate(keys)})
    return True


def refuse_uneven(steps: dict[int, int]) -> None:
    """Workers whose loops were not equally long, though none has waited for another one."""
    least, most = min(steps, key=lambda rank: steps[rank]), max(steps, key=lambda rank: steps[rank])
    if steps[least] < steps[most]:
        raise UnevenSteps.between(least, steps[least], most, steps[most])
