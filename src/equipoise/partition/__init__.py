"""Which examples does a worker own?"""

from ..data.view import View as View
from .base import Partition as Partition
from .contiguous import Contiguous as Contiguous
from .dirichlet import Dirichlet as Dirichlet
from .from_file import FromFile as FromFile
from .iid import IID as IID
from .shards import Shards as Shards
from .sorted import Sorted as Sorted
from .stratified import Stratified as Stratified
from .submodular import Submodular as Submodular
