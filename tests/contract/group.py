"""Many runs of `eq.train` in one group of processes: what starting four of them costs is paid once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import equipoise as eq
from equipoise.comm.base import Comm

from . import toy


class _Ended(Exception):
    """Carries a result out of `eq.train`, which has no model to return on ranks above zero."""


def results(runs: dict[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Each of these calls `eq.train`, whose workers are the processes of one group; its result, by name."""

    def all_of_them(comm: Comm) -> dict[str, dict[str, Any]]:
        return {name: _result(run, comm) for name, run in runs.items()}

    ends: dict[str, dict[str, Any]] = eq.spawn(all_of_them, toy.WORKERS, deterministic=True, timeout=60)[0]
    return ends


def _result(run: Callable[[], Any], comm: Comm) -> dict[str, Any]:
    def spawn(function: Callable[[Comm], Any], workers: int, **how: Any) -> list[Any]:
        assert workers == comm.size
        raise _Ended(function(comm)[0])

    comm.ledger.load_state_dict({"messages": 0, "bytes": 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equipoise.loop.train.spawn", spawn)
        with pytest.raises(_Ended) as ended:
            run()
    end: dict[str, Any] = ended.value.args[0]
    return end
