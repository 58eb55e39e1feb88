"""Small reference models that the command line can name, and the contract to write one."""

from .base import Model
from .lenet import LeNet
from .logistic import Logistic
from .lstm import LSTM
from .mlp import MLP
from .resnet import ResNet
from .transformer import Transformer
from .vgg import VGG

__all__ = ["LSTM", "MLP", "VGG", "LeNet", "Logistic", "Model", "ResNet", "Transformer"]
