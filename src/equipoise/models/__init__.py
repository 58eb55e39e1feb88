"""Small reference models that the command line can name, and the contract to write one."""

from .base import Model
from .lenet import LeNet
from .logistic import Logistic
from .lstm import LSTM
from .mlp import MLP
from .resnet import ResNet
from .transformer import Transformer

__all__ = ["LSTM", "MLP", "LeNet", "Logistic", "Model", "ResNet", "Transformer"]
