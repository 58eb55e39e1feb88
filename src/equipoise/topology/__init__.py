"""Who talks to whom?"""

from .base import Static as Static
from .base import Topology as Topology
from .base_k import BaseK as BaseK
from .complete import Complete as Complete
from .edges import Edges as Edges
from .exponential import Exponential as Exponential
from .hypercube import Hypercube as Hypercube
from .matching import Matching as Matching
from .one_peer import OnePeer as OnePeer
from .path import Path as Path
from .random import Random as Random
from .ring import Ring as Ring
from .star import Star as Star
from .torus import Torus as Torus
