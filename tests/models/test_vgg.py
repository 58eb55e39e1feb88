from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.models import VGG

from .test_models import DATA, size


def test_size_and_depth() -> None:
    net = VGG().build(DATA["cifar"])
    assert size(net) == 204_794
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == 6
    assert sum(isinstance(m, nn.Linear) for m in net.modules()) == 2


def test_small_images_get_fewer_stages() -> None:
    net = VGG(stages=5).build(DATA["digits"])  # 8 x 8: three halvings
    assert sum(isinstance(m, nn.MaxPool2d) for m in net.modules()) == 3
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("norm", ["group", "none"])
def test_without_batchnorm_an_example_does_not_depend_on_its_batch(norm: str) -> None:
    data = DATA["digits"]
    net = VGG(norm=norm).build(data)
    torch.testing.assert_close(net(data.train.x)[2:3], net(data.train.x[2:3]))
    assert not list(net.buffers())
