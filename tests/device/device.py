"""A device that is not the CPU in type, for tests: see extension.cpp. It is built once per version of torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

NAME = "strict"  # what `torch.device` calls it
_SOURCE = Path(__file__).with_name("extension.cpp")


class Counts(NamedTuple):
    """What the host has done with tensors of the device."""

    reads: int = 0  # of values: item, tolist of a scalar, shapes that depend on values
    downloads: int = 0  # of tensors
    uploads: int = 0

    @property
    def waits(self) -> int:
        """How often the host has waited for the device."""
        return self.reads + self.downloads


def counts() -> Counts:
    ops = torch.ops.strict_device
    return Counts(ops.reads(), ops.downloads(), ops.uploads())


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """A row of [reads, downloads, uploads] inside the block, filled when it ends."""
    before, row = counts(), [0, 0, 0]
    yield row
    row[:] = [after - first for after, first in zip(counts(), before, strict=True)]


@contextlib.contextmanager
def without_float64() -> Iterator[None]:
    """As on MPS."""
    from equipoise.core import device

    device._computes_in.cache_clear()
    torch.ops.strict_device.set_float64(False)
    try:
        yield
    finally:
        torch.ops.strict_device.set_float64(True)
        device._computes_in.cache_clear()


def load() -> torch.device:
    """The device, which is there from now on."""
    if not hasattr(torch, NAME):
        torch.ops.load_library(str(_built()))
        torch.utils.rename_privateuse1_backend(NAME)
        torch.ops.strict_device.start()
        torch._register_device_module(NAME, _module())
        torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device(NAME, 0)


started = False  # does the device say that this process has used it, so that no fork can?


def _module() -> Any:
    module = types.ModuleType(NAME)
    generator = torch.ops.strict_device

    def get_rng_state(device: Any = None) -> torch.Tensor:
        return generator.get_rng_state()

    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        generator.set_rng_state(state)

    module.__dict__.update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda index: None,
        device=lambda index: contextlib.nullcontext(),
        is_initialized=lambda: started,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: generator.seed(seed),
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        synchronize=lambda device=None: None,
        get_device_properties=lambda device: types.SimpleNamespace(uuid=os.getpid()),  # each process has one of its own
    )
    return module


def _built() -> Path:
    """The library: compiled by the first who needs it, found by the others."""
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(source + torch.__version__.encode() + sys.version.encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise-tests"
    library = folder / f"strict-{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        home = Path(torch.__file__).parent
        with tempfile.TemporaryDirectory(dir=folder) as part:
            made = Path(part) / "strict.so"
            words = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", "-w", f"-I{home}/include", str(_SOURCE)]
            words += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-o", str(made)]
            words += [f"-L{home}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home}/lib"]
            subprocess.run(words, check=True, capture_output=True, text=True)
            made.rename(library)
    return library
