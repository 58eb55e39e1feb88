"""A key-value store for workers of one host: one file per key in a folder.

It has the part of the interface of torch.distributed stores that heartbeats and counters use. A TCPStore looks up the
name of every client, which takes seconds where no name server answers; a FileStore grows with every write.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path


class FolderStore:
    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", ".")

    def set(self, key: str, value: str) -> None:
        path = self._path(key)
        part = path.with_name(f"{path.name}-{os.getpid()}-{threading.get_ident()}")
        part.write_text(value)
        part.replace(path)  # atomic: no reader sees half a value

    def check(self, keys: list[str]) -> bool:
        return all(self._path(key).exists() for key in keys)

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def add(self, key: str, value: int) -> int:
        with open(self._path(key), "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            total = int(file.read() or 0) + value
            file.truncate(0)
            file.write(str(total))
        return total
