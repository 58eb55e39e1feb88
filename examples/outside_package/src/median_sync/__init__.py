"""A sync for Equipoise from outside its repository."""

from .median import Median as Median
