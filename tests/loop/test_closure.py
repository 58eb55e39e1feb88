"""`optimizer.step(closure)` is the same step as `backward()` before `step()`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError

WORKERS, STEPS = 3, 7
INPUTS = torch.randn(WORKERS, STEPS, 6, 5, generator=torch.Generator().manual_seed(2))


def trained(closures: str, **choices: Any) -> torch.Tensor:
    """The parameters of all workers after some steps; closures: none, or how they are passed."""

    def main(comm: Any) -> torch.Tensor:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        calls = 0
        with eq.attach(model, optimizer, **choices):
            for x in INPUTS[comm.rank]:

                def closure(x: torch.Tensor = x) -> torch.Tensor:
                    nonlocal calls
                    calls += 1
                    optimizer.zero_grad()
                    loss = model(x).square().mean()
                    loss.backward()
                    return loss

                if closures == "none":
                    closure()
                    optimizer.step()
                else:
                    with torch.no_grad():  # as torch's own optimizers do, it turns gradients on for the closure
                        loss = optimizer.step(closure) if closures == "positional" else optimizer.step(closure=closure)
                    assert loss.shape == ()
        assert calls == STEPS
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    return torch.stack(eq.spawn(main, WORKERS, virtual=True))


@pytest.mark.parametrize(
    "choices",
    [{"clip": 0.1}, {"sync": eq.sync.DeTAG()}, {"period": 3}],
    ids=["all-reduce", "detag", "periodic-average"],
)
def test_a_closure_gives_the_same_bits(choices: dict[str, Any]) -> None:
    expected = trained("none", **choices)
    assert torch.equal(trained("positional", **choices), expected)
    assert torch.equal(trained("by name", **choices), expected)


def test_an_optimizer_that_evaluates_several_times_is_refused() -> None:
    def main(comm: Any) -> None:
        model = nn.Linear(5, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(INPUTS[comm.rank, 0]).square().mean()
            loss.backward()
            return loss

        with eq.attach(model, optimizer):
            optimizer.step(closure)

    with pytest.raises(UserError, match="LBFGS evaluates its closure several times in one step"):
        eq.spawn(main, 2, virtual=True)
