from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.core.errors import UserError
from equipoise.core.vector import Buffers, Flat, digest


class Mixed(nn.Module):
    """Three dtypes in one model; the widest, float32, is neither first nor last."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Parameter(torch.tensor([1.5, -2.25], dtype=torch.float16))
        self.single = nn.Parameter(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
        self.brain = nn.Parameter(torch.tensor([3.0], dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.single).sum(1) * self.brain.float() + (x * self.narrow.float()).sum(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.embed.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(i))


def holder(**parameters: nn.Parameter) -> nn.Module:
    module = nn.Module()
    for name, p in parameters.items():
        module.register_parameter(name, p)
    return module


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


# -- parameters as views ------------------------------------------------------------------------------------------
def test_x_is_the_parameters_in_order_without_a_copy() -> None:
    model = mlp()
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    flat = Flat(model)
    assert torch.equal(flat.x, before)
    offset = 0
    for p in model.parameters():
        assert p.data_ptr() == flat.x.data_ptr() + offset * flat.x.element_size()
        assert p.is_leaf
        assert p.requires_grad
        offset += p.numel()
    assert len(flat) == offset == flat.x.numel()


def test_writing_x_changes_the_model_and_back() -> None:
    model = mlp()
    flat = Flat(model)
    x = flat.x
    x.zero_()
    assert torch.equal(model(torch.ones(2, 4)), torch.zeros(2, 2))
    with torch.no_grad():
        model[2].bias.fill_(7.0)
    assert torch.equal(x[-2:], torch.tensor([7.0, 7.0]))
    assert flat.gather() is x, "x is one tensor for the whole life of the model"


def test_an_optimizer_made_before_still_moves_the_model() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    flat = Flat(model)
    before = flat.x.clone()
    model(torch.ones(1, 4)).sum().backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    optimizer.step()
    assert torch.equal(flat.x, before - gradient)


def test_tied_weights_appear_once_and_stay_tied() -> None:
    model = Tied()
    flat = Flat(model)
    assert [s.name for s in flat.slices] == ["embed.weight", "out.bias"]
    assert len(flat) == 15 + 5
    flat.x[:15] = 2.0
    assert model.out.weight is model.embed.weight
    assert model.out.weight.eq(2.0).all()
    # Both uses add to the one gradient.
    flat.zero_gradient(flat=True)
    model(torch.tensor([1])).sum().backward()
    g = flat.gradient()[:15].view(5, 3)
    assert torch.equal(g[0], torch.full((3,), 2.0))
    assert torch.equal(g[1], torch.full((3,), 2.0 + 10.0))


def test_frozen_parameters_are_left_alone() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    kept, address = model[0].weight.clone(), model[0].weight.data_ptr()
    flat = Flat(model)
    assert [s.name for s in flat.slices] == ["0.bias", "2.weight", "2.bias"]
    flat.x.zero_()
    assert torch.equal(model[0].weight, kept)
    assert model[0].weight.data_ptr() == address


def test_a_second_flat_of_the_same_model_takes_over() -> None:
    model = mlp()
    first = Flat(model)
    second = Flat(model)
    assert torch.equal(first.x, second.x)
    second.x.fill_(3.0)
    assert all(p.eq(3.0).all() for p in model.parameters())


def test_channels_last_and_transposed_parameters_keep_their_values() -> None:
    conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    wide = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    kept = conv.weight.detach().clone()
    flat = Flat(nn.ModuleDict({"conv": conv, "wide": holder(w=wide)}))
    assert torch.equal(conv.weight, kept)
    assert torch.equal(flat.layers(flat.x)["wide.w"], torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]))


def test_layers_are_named_views_of_any_vector() -> None:
    flat = Flat(mlp())
    vector = torch.arange(float(len(flat)))
    layers = flat.layers(vector)
    assert list(layers) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [t.numel() for t in layers.values()] == [12, 3, 6, 2]
    assert torch.equal(torch.cat(list(layers.values())), vector)
    layers["0.bias"].zero_()
    assert vector[12:15].eq(0).all()
    assert vector.count_nonzero() == len(flat) - 1 - 3  # the first element was zero before


def test_load_state_dict_keeps_the_views() -> None:
    model, other = mlp(), mlp()
    flat = Flat(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    address = flat.x.data_ptr()
    model.load_state_dict(other.state_dict())
    assert torch.equal(flat.gather(), torch.cat([p.detach().reshape(-1) for p in other.parameters()]))
    flat.x.zero_()
    assert flat.x.data_ptr() == address
    assert all(p.eq(0).all() for p in model.parameters())


@pytest.mark.parametrize("which", [0, 3])
def test_parameters_moved_elsewhere_are_adopted_again(which: int) -> None:
    """`p.data = ...` on any of them, not only the first: x must not go on with a stale copy."""
    model = mlp()
    flat = Flat(model)
    p = list(model.parameters())[which]
    p.data = torch.full_like(p, 5.0)
    s = flat.slices[which]
    assert flat.gather()[s.start : s.stop].eq(5.0).all()
    flat.x.fill_(1.0)
    assert all(p.eq(1.0).all() for p in model.parameters())


def test_a_model_converted_afterwards_is_refused() -> None:
    model = mlp()
    flat = Flat(model)
    model.double()
    with pytest.raises(UserError, match="converted after it was attached"):
        flat.gather()


def test_an_empty_parameter_takes_no_room() -> None:
    model = holder(none=nn.Parameter(torch.empty(0, 3)), some=nn.Parameter(torch.ones(2)))
    flat = Flat(model)
    assert torch.equal(flat.gather(), torch.ones(2))
    flat.zero_gradient(flat=True)
    (model.some.sum() + model.none.sum()).backward()
    assert torch.equal(flat.gradient(), torch.ones(2))


def test_widen_makes_room_behind_x() -> None:
    model = mlp()
    flat = Flat(model)
    before = flat.x.clone()
    buffer = flat.widen(3)
    assert buffer.numel() == len(flat) + 3
    assert torch.equal(flat.x, before)
    buffer[: len(flat)] = 4.0
    assert all(p.eq(4.0).all() for p in model.parameters())
    assert flat.gather().data_ptr() == buffer.data_ptr()


# -- refusals -----------------------------------------------------------------------------------------------------
def test_no_trainable_parameter_is_refused() -> None:
    with pytest.raises(UserError, match="no trainable parameter"):
        Flat(mlp().requires_grad_(False))


@pytest.mark.parametrize("view", [lambda w: w, lambda w: w[:2], lambda w: w[1:], lambda w: w.t()])
def test_two_parameters_sharing_memory_are_refused(view) -> None:
    w = torch.randn(3, 3)
    model = holder(one=nn.Parameter(w), two=nn.Parameter(view(w)))
    with pytest.raises(UserError, match="(one and two|two and one) share memory.*same nn.Parameter"):
        Flat(model)


def test_parameters_side_by_side_in_one_storage_are_fine() -> None:
    w = torch.arange(6.0)
    flat = Flat(holder(one=nn.Parameter(w[:2]), two=nn.Parameter(w[2:])))
    assert torch.equal(flat.x, w)


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(UserError, match="parameter c is torch.complex64"):
        Flat(holder(c=nn.Parameter(torch.zeros(2, dtype=torch.complex64))))


# -- several dtypes -----------------------------------------------------------------------------------------------
def test_mixed_dtypes_round_trip_exactly() -> None:
    """Every float16 and bfloat16 is a float32: in and out again must change nothing."""
    model = Mixed()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    flat = Flat(model)
    assert flat.x.dtype == torch.float32
    assert torch.equal(flat.gather(), torch.tensor([1.5, -2.25, 0.1, 0.2, 0.3, 0.4, 3.0]))
    flat.scatter()
    for n, p in model.named_parameters():
        assert p.dtype == before[n].dtype
        assert torch.equal(p, before[n])
    assert model.single.data_ptr() == flat.x[2:].data_ptr(), "the widest dtype is a view"
    flat.x.copy_(torch.arange(7.0))
    flat.scatter()
    assert model.narrow.tolist() == [0.0, 1.0]
    assert model.brain.tolist() == [6.0]
    with torch.no_grad():
        model.brain.fill_(9.0)
    assert flat.gather()[6] == 9.0


def test_two_half_precisions_meet_in_single() -> None:
    model = holder(
        a=nn.Parameter(torch.tensor([1.0], dtype=torch.float16)),
        b=nn.Parameter(torch.tensor([2.0], dtype=torch.bfloat16)),
    )
    flat = Flat(model)
    assert flat.x.dtype == torch.float32
    assert flat.gather().tolist() == [1.0, 2.0]
    flat.x.mul_(3.0)
    flat.scatter()
    assert model.a.item() == 3.0
    assert model.b.item() == 6.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_one_dtype_is_all_views(dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    flat = Flat(model)
    assert flat.x.dtype == dtype
    flat.x.fill_(0.5)
    assert all(p.eq(0.5).all() for p in model.parameters())


def test_a_step_of_a_mixed_model_through_the_flat_gradient() -> None:
    """x - lr g with g changed by a method reaches every parameter, in its own precision."""
    model = Mixed()
    flat = Flat(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    flat.zero_gradient(flat=True)
    model(torch.tensor([[1.0, 2.0]])).sum().backward()
    expected = [p.grad.float().reshape(-1).clone() for p in model.parameters()]
    g = flat.gradient()
    assert g.dtype == torch.float32
    assert torch.equal(g, torch.cat(expected))
    before = flat.gather().clone()
    g.fill_(2.0)
    flat.scatter_gradient()
    assert all(p.grad.eq(2.0).all() and p.grad.dtype == p.dtype for p in model.parameters())
    optimizer.step()
    # lr g = 1 exactly; the narrow ones are rounded to their own precision.
    after = torch.cat([(p0 - 1.0) for p0 in before.split([2, 4, 1])])
    after[:2] = after[:2].half().float()
    after[6:] = after[6:].bfloat16().float()
    assert torch.equal(flat.gather(), after)


# -- gradients ----------------------------------------------------------------------------------------------------
def gradients_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(model(x).square().sum(), parameters, allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if d is None else d.reshape(-1) for p, d in zip(parameters, found, strict=True)]
    )


def test_g_is_a_view_of_every_gradient() -> None:
    model, x = mlp(), torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    flat = Flat(model)
    flat.zero_gradient(flat=True)
    assert flat.g.eq(0).all()
    model(x).square().sum().backward()
    address = flat.g.data_ptr()
    for s, p in zip(flat.slices, model.parameters(), strict=True):
        assert p.grad.data_ptr() == address + 4 * s.start
    assert torch.equal(flat.gradient(), gradients_of(model, x))
    flat.g.mul_(2.0)
    assert torch.equal(torch.cat([p.grad.reshape(-1) for p in model.parameters()]), 2.0 * gradients_of(model, x))
    model(x).square().sum().backward()
    assert torch.equal(flat.gradient(), 3.0 * gradients_of(model, x)), "gradients accumulate until they are zeroed"
    flat.zero_gradient(flat=True)
    assert flat.gradient().eq(0).all()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_user_who_zeroes_gradients_alone(set_to_none: bool) -> None:
    model, x = mlp(), torch.ones(2, 4)
    flat = Flat(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        expected = gradients_of(model, x)
        model(x).square().sum().backward()
        g = flat.gradient()
        assert torch.equal(g, expected)
        assert all(
            p.grad.data_ptr() == g[s.start :].data_ptr() for s, p in zip(flat.slices, model.parameters(), strict=True)
        )
        optimizer.step()


def test_a_parameter_without_a_gradient_this_step_counts_as_zero() -> None:
    model = holder(used=nn.Parameter(torch.ones(2)), unused=nn.Parameter(torch.ones(3)))
    flat = Flat(model)
    model.used.sum().backward()
    model.unused.grad = torch.full((3,), 4.0)
    assert flat.gradient().tolist() == [1, 1, 4, 4, 4]
    for p in model.parameters():
        p.grad = None
    model.used.sum().backward()
    assert flat.gradient().tolist() == [1, 1, 0, 0, 0], "what g held of the last step is gone"


def test_a_narrow_parameter_without_a_gradient_counts_as_zero() -> None:
    model = Mixed()
    flat = Flat(model)
    flat.g.fill_(8.0)
    flat.zero_gradient(flat=True)
    model.single.sum().backward()
    assert flat.gradient().tolist() == [0, 0, 1, 1, 1, 1, 0]
    flat.scatter_gradient()
    assert model.narrow.grad.tolist() == [0, 0]


def test_the_tail_rides_behind_g() -> None:
    flat = Flat(mlp())
    message = flat.gradient_with_tail
    assert message.numel() == len(flat) + 1
    message[-1] = 5.0
    flat.zero_gradient(flat=True)
    assert flat.g.data_ptr() == message.data_ptr()
    assert flat.g.numel() == len(flat)


def test_without_flat_gradients_autograd_hands_over_its_own() -> None:
    model = mlp()
    flat = Flat(model)
    flat.zero_gradient(flat=False)
    assert all(p.grad is None for p in model.parameters())


# -- buffers ------------------------------------------------------------------------------------------------------
def test_buffers_of_batch_norm_and_no_integers() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    buffers = Buffers(model)
    assert len(buffers) == 4, "running mean and variance; the count of batches is an integer"
    assert buffers.gather().tolist() == [0, 0, 1, 1]
    model(torch.randn(5, 3))
    model(torch.randn(5, 3))
    assert torch.equal(buffers.gather(), torch.cat([model[1].running_mean, model[1].running_var]))
    buffers.scatter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert model[1].running_mean.tolist() == [1, 2]
    assert model[1].running_var.tolist() == [3, 4]
    assert model[1].num_batches_tracked.item() == 2


def test_buffers_of_several_dtypes_and_none_at_all() -> None:
    module = nn.Module()
    module.register_buffer("h", torch.tensor([1.5], dtype=torch.float16))
    module.register_buffer("n", torch.tensor(7))
    module.register_buffer("f", torch.tensor([[0.1], [0.2]]))
    buffers = Buffers(module)
    vector = buffers.gather()
    assert vector.dtype == torch.float32
    buffers.scatter(vector * 2.0)
    assert module.h.item() == 3.0
    assert module.h.dtype == torch.float16
    assert torch.equal(module.f, torch.tensor([[0.2], [0.4]]))
    assert module.n.item() == 7
    assert len(Buffers(nn.Linear(2, 2))) == 0
    assert Buffers(nn.Linear(2, 2)).gather().numel() == 0


def test_a_buffer_that_a_forward_pass_assigns_anew() -> None:
    module = nn.Module()
    module.register_buffer("ema", torch.zeros(2))
    buffers = Buffers(module)
    module.ema = module.ema + 1.0
    assert buffers.gather().tolist() == [1, 1]
    buffers.scatter(torch.tensor([3.0, 4.0]))
    assert module.ema.tolist() == [3, 4]


# -- digest -------------------------------------------------------------------------------------------------------
def test_digest_is_sha256_of_the_bytes() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor(3)
    expected = hashlib.sha256(a.numpy().tobytes() + b.numpy().tobytes()).hexdigest()
    assert digest(a, b) == expected
    assert digest(torch.tensor([[1.0, 9.0], [2.0, 9.0]])[:, 0], b) == expected, "the order of memory does not matter"
    assert digest(torch.tensor([1.0, 2.0000002]), b) != expected
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0])), "bits, not values"
    assert len(digest(torch.ones(2, dtype=torch.bfloat16))) == 64


def test_released_parameters_have_memory_of_their_own_and_can_be_taken_back() -> None:
    """Packages that save models take parameters in one storage for tied ones, and drop all but the first."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    flat = Flat(model)
    before = flat.x.clone()
    flat.release()
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 4
    with torch.no_grad():
        model[0].weight.add_(1.0)
    before[:6] += 1.0
    assert torch.equal(flat.gather(), before)
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 1


class Kernels(TorchDispatchMode):
    """Counts what would be launched on a device: copies and fills, not views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.count += name.endswith("_") and not name.startswith("detach")
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("grads", [True, False], ids=["gradients", "none"])
def test_copies_are_a_few_calls_however_many_parameters_there_are(grads: bool) -> None:
    def calls(layers: int) -> int:
        dtypes = [torch.float32, torch.bfloat16] * layers
        model = nn.Sequential(*(nn.Linear(3, 3, dtype=dtype) for dtype in dtypes))
        flat = Flat(model)
        if grads:
            for p in model.parameters():
                p.grad = torch.ones_like(p)
        with Kernels() as kernels:
            flat.gather()
            flat.scatter()
            flat.copy_gradient()
            flat.gradient()
            flat.scatter_gradient()
        return kernels.count

    assert calls(2) == calls(9) <= 8
