"""What workers of one host tell each other besides messages: small values in the files of one folder.

It answers as the stores of torch.distributed do, as far as heartbeats and counters ask. A TCP store looks up the name of whoever
connects, which takes seconds where no name server answers; a FileStore grows with every value.
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
        part.replace(path)  # at once: nobody reads half a value

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
