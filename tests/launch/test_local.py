"""The launcher of local processes: signals, temporary files, calls from other threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.core.errors import UserError, WorkerError

from ..comm.workers import run


@pytest.mark.parametrize(
    ("how", "words"),
    [({"workers": 0}, "workers = 0"), ({"workers": -1}, "workers = -1"), ({"timeout": 0.0}, "timeout = 0.0")],
)
def test_invalid_arguments_are_refused_before_a_worker_starts(how: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(lambda comm: None, how.pop("workers", 2), False, **how)


def test_a_launch_from_another_thread() -> None:
    """Only the main thread can handle signals; any thread can start workers."""
    outcomes: list[Any] = []

    def start() -> None:
        try:
            outcomes.append(run(lambda comm: comm.sum(torch.ones(1)).item(), 2, False))
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert outcomes == [[2.0, 2.0]]


def test_signal_handlers_are_as_before() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    for virtual in (True, False):
        run(lambda comm: None, 2, virtual)
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


def test_nothing_is_left_in_the_folder_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    entries = run(lambda comm: (comm.counter("c", 1), len(list(tmp_path.iterdir())))[1], 2, False)
    assert entries == [1, 1]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WorkerError):
        run(lambda comm: os._exit(1), 2, False)
    assert list(tmp_path.iterdir()) == []


def test_the_parents_other_children_are_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal is forwarded to the workers only, not to a helper process of the user."""
    import multiprocessing

    helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    helper.start()
    try:

        def work(comm: Any) -> bool:
            signalled = []
            signal.signal(signal.SIGTERM, lambda *_: signalled.append(1))
            comm.sum(torch.ones(1))
            if comm.rank == 0:
                os.kill(os.getppid(), signal.SIGTERM)
            for _ in range(100):
                if signalled:
                    break
                time.sleep(0.02)
            comm.sum(torch.ones(1))
            return bool(signalled)

        assert run(work, 2, False) == [True, True]
        assert helper.is_alive()
    finally:
        helper.kill()
        helper.join()
