"""Signs of life of workers that come and go."""

from __future__ import annotations

import os
import time

import torch.distributed as dist

from equipoise.comm.presence import Member, Presence


def test_who_leaves_a_call_that_took_long_does_not_hang() -> None:
    """It has waited for a third worker as long as this one has, and was only the first to give up."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    presence, other = Presence(store, Member.here(0), deadline=2.0), Member.here(1)

    def looked(seconds: float, inside: int) -> list[bool]:
        end, found = time.monotonic() + seconds, []
        while time.monotonic() < end:
            store.set("beat/1", f"{os.getpid()} {time.monotonic_ns()} 7 {inside} 18")
            found.append(presence.stuck(other) is not None)
            time.sleep(0.02)
        return found

    try:
        assert not any(looked(2.5, inside=1))
        assert not any(looked(0.2, inside=0))
        assert looked(2.5, inside=0)[-1]
        assert presence.stuck(other) == ("hangs outside of communication", 18)
    finally:
        presence.leave()
