"""Communication between workers: processes on torch.distributed, or virtual workers inside one process."""

from ..simulate.cluster import Cluster as Cluster
from .base import Comm as Comm
from .base import Pending as Pending
from .base import barrier as barrier
from .ledger import Ledger as Ledger
