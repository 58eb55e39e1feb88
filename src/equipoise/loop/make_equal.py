"""All workers start with the same model."""

from __future__ import annotations

from torch import nn

from ..comm.base import Comm
from ..core.errors import WorkerError
from ..core.shards import local
from ..core.vector import Flat, digest


def make_equal(comm: Comm, model: nn.Module, flat: Flat) -> None:
    """Give every worker worker 0's parameters and buffers, frozen ones too, and verify that they arrived."""
    if comm.size == 1:
        return
    shapes = comm.gather_objects([(name, tuple(t.shape), str(t.dtype)) for name, t in model.state_dict().items()])
    for rank, other in enumerate(shapes):
        if other != shapes[0]:
            differing = next((a for a, b in zip(other, shapes[0], strict=False) if a != b), "another number of tensors")
            raise WorkerError(f"worker {rank} built another model than worker 0: {differing}", rank, 0)
    with comm.uncounted():
        comm.broadcast(flat.gather())
        flat.scatter()
        frozen = [local(p) for p in model.parameters() if not p.requires_grad]
        for tensor in [*frozen, *model.buffers()]:
            comm.broadcast(tensor.data)
    sums = comm.gather_objects(digest(flat.gather(), *frozen, *model.buffers()))
    assert len(set(sums)) == 1, "the initial parameters differ after a broadcast"
