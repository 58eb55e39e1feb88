"""Equipoise: train one model on unequal workers, with slow links and uneven data."""

from . import batch, order, partition, period, signal, sync, topology
from .comm.network import Cluster as Cluster
from .launch.start import launch as launch
from .loop.sampler import Sampler as Sampler
from .loop.train import Run as Run
from .loop.train import train as train

__version__ = "0.1.0"
__all__ = ["Cluster", "Run", "Sampler", "batch", "launch", "order", "partition", "period", "signal", "sync", "topology", "train"]
