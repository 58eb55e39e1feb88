"""What each worker adds to the checkpoint of a framework, which has one model and one optimizer for all of them."""

from __future__ import annotations

import inspect
import secrets
import socket
from collections.abc import Callable
from typing import Any

from ..checkpoint.match import refuse_mismatch
from ..core.errors import CheckpointError, UserError
from ..loop.attach import attach
from ..loop.contents import Misfit
from ..loop.own_checkpoint import put_back_state, whole_state
from ..loop.own_loop import fingerprint_of


def worker_state(together: attach) -> dict[str, Any]:
    """Everything that decides the rest of the loop on this worker; all workers call it together.

    `token` is the same on all workers, and another one in every checkpoint.
    """
    together.step.guard.meet()
    comm = together.comm
    return {
        "token": comm.gather_objects(secrets.token_hex(8))[0],
        "workers": comm.size,
        "fingerprint": fingerprint_of(together),
        "state": whole_state(together),
    }


def put_back_worker_state(
    together: attach, read: Callable[[], dict[str, Any]], where: str, token: str | None = None
) -> None:
    """Put this worker where `worker_state` found it; all workers call it together, and raise the same error.

    read: returns what `worker_state` gave. where: the name of the checkpoint. token: of the checkpoint, if known.
    """
    comm, found, problem = together.comm, {}, None
    try:
        found = read()
        if not {"token", "workers", "fingerprint", "state"} <= set(found):
            problem = "does not hold the state of a worker"
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        problem = f"cannot be read ({what})"
    told = comm.gather_objects((problem, socket.gethostname(), found.get("token"), found.get("workers")))
    for rank, (problem, host, _, _) in enumerate(told):
        if problem is not None:
            raise CheckpointError(f"{where}: the file of worker {rank} on {host} {problem}")
    tokens, workers = {each[2] for each in told} | ({token} - {None}), told[0][3]
    if workers != comm.size:
        raise CheckpointError(f"{where} is of {workers} workers and there are {comm.size}: start as many")
    if len(tokens) > 1:
        raise CheckpointError(f"{where} has files of different checkpoints: resume from another one")
    refuse_mismatch(found["fingerprint"], fingerprint_of(together))
    try:
        put_back_state(together, found["state"])
    except (KeyError, TypeError, Misfit) as error:
        raise CheckpointError(f"{where}: the file of worker {comm.rank} is damaged ({error})") from error


def refuse_unknown(options: dict[str, Any], decided: tuple[str, ...], who: str) -> None:
    """Refuse options that `eq.attach` does not have, and those that an adapter decides itself."""
    known = [name for name in inspect.signature(attach).parameters if name not in ("model", "optimizer", *decided)]
    for name in options:
        if name not in known:
            raise UserError(f"{who} has no option {name!r}; there are: {', '.join(known)}")
