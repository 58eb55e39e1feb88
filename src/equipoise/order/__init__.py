"""In which order does a worker visit its examples?"""

from .base import Order as Order
from .flip_flop import FlipFlop as FlipFlop
from .reshuffle import Reshuffle as Reshuffle
from .sequential import Sequential as Sequential
from .shuffle_once import ShuffleOnce as ShuffleOnce
