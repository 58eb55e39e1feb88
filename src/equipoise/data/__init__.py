"""Data sets that the command line can name, and the contract to write one."""

from .base import Arrays, Data, Loaded
from .cifar10 import CIFAR10
from .digits import Digits
from .fashion_mnist import FashionMNIST
from .synthetic import Synthetic
from .text import Text
from .tsv import TSV

__all__ = [
    "CIFAR10",
    "TSV",
    "Arrays",
    "Data",
    "Digits",
    "FashionMNIST",
    "Loaded",
    "Synthetic",
    "Text",
]
