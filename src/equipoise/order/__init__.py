"""In which order does a worker visit its examples?"""

from .base import Order as Order
from .cd_grab import CDGraB as CDGraB
from .flip_flop import FlipFlop as FlipFlop
from .grab import GraB as GraB
from .herding import Herding as Herding
from .id_grab import IDGraB as IDGraB
from .pair_balance import PairBalance as PairBalance
from .paired_reversal import PairedReversal as PairedReversal
from .reshuffle import Reshuffle as Reshuffle
from .sequential import Sequential as Sequential
from .shuffle_once import ShuffleOnce as ShuffleOnce
