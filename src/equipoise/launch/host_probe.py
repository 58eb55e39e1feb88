"""What a host tells `equipoise doctor --hosts`, over the pipe of ssh: lines of JSON, one for each that it is sent.

-> versions, interfaces, the port at which it listens
{"time": 1}                 -> its clock
{"reach": [[HOST, PORT]]}   -> whom it reaches, by which own address, in how many milliseconds
"""

from __future__ import annotations

import json
import platform
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PATIENCE = 3.0  # seconds for a connection


def serve() -> int:
    """The side of the host; it ends with its input."""
    import torch

    from .. import __version__
    from ..comm.interfaces import interfaces

    listener = socket.create_server(("0.0.0.0", 0), backlog=64)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    versions = {"equipoise": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    _tell({"versions": versions, "interfaces": interfaces(), "port": listener.getsockname()[1]})
    for line in sys.stdin:
        asked = json.loads(line)
        if "time" in asked:
            _tell({"time": time.time()})
        else:
            with ThreadPoolExecutor() as together:
                _tell({"reached": list(together.map(_reach, asked["reach"]))})
    return 0


def _tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.close()


def _reach(place: tuple[str, int]) -> dict[str, Any]:
    from ..comm.interfaces import address_towards

    host, port = place
    began = time.perf_counter()
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        return {"problem": str(error.strerror or error)}
    return {"ms": 1e3 * (time.perf_counter() - began), "own": address_towards(host)}
