"""Whatever goes bad in one worker, with whatever sync: it does not spread, and the policy decides what follows."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.checkpoint.store import available, read_worker
from equipoise.comm.current import current_comm
from equipoise.config import registry
from equipoise.core.errors import NonFinite
from equipoise.core.finite import first_not_finite
from equipoise.loop.nonfinite import Guard, agreement_cost

from .faults import BAD, EVERYBODY, KINDS, PASSING, WORKERS, job, not_finite, run
from .problem import INPUTS, TARGETS, plain, with_norm

VARIANTS = [
    eq.sync.DPSGD(combine="before"),
    eq.sync.DPSGD(combine="before", overlap=True),
    eq.sync.DeTAG(frozen=True),
    eq.sync.DeTAG(frozen=True, overlap=True),
    eq.sync.DiLoCo(delay=1, fragments=2),
    eq.sync.LSGD(groups=2, global_every=2),
    eq.sync.MGRAWA(source="last"),
    eq.sync.LGRAWA(shrink=True),
    eq.sync.PeriodicAverage(state="average", weights="samples"),
    eq.sync.SGP(eq.topology.Edges(links=[(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], directed=True)),
]
SYNCS = [pytest.param(registry.get("sync", entry.name)(), {}, id=entry.name) for entry in registry.entries("sync")]
SYNCS += [pytest.param(sync, {}, id=repr(sync)) for sync in VARIANTS]
SYNCS += [
    pytest.param(sync, {"wire": wire}, id=f"{type(sync).__name__}-{type(wire).__name__}")
    for sync, wire in [
        (eq.sync.AllReduce(), eq.wire.TopK(keep=0.5)),
        (eq.sync.PeriodicAverage(), eq.wire.PowerSGD()),
        (eq.sync.DSGT(), eq.wire.Int8()),
        (eq.sync.LSGD(), eq.wire.Int8()),
        (eq.sync.RelaySGD(), eq.wire.Int8()),
        (eq.sync.MGRAWA(), eq.wire.Int8()),
    ]
]
# By what is received.
OVERWRITTEN = [(eq.sync.DeTAG(frozen=True, overlap=True), "parameters"), (eq.sync.LSGD(), "state")]
every_sync = pytest.mark.parametrize(("sync", "more"), SYNCS)
EVERY = 3  # steps between faults, with a round of a method with local steps among them


@every_sync
def test_leave_out_heals_the_worker_within_a_round(sync: Any, more: dict[str, Any]) -> None:
    """Five faults in one run. The others never hold a bad number, and the worker is well after the next round."""
    faults = {3 + EVERY * i: kind for i, kind in enumerate(KINDS)}
    steps = 3 + EVERY * len(KINDS)

    def look(worker: Any, number: int) -> tuple[str | None, bool]:
        if number == steps and not worker.stepper.talks:
            worker.stepper.guard.meet()  # without rounds, that is where workers meet
        return not_finite(worker), worker.clock.due or number == steps

    rows = run(job(sync, "leave-out", **more), steps, faults, look)
    for rank, (_, seen, events) in enumerate(rows):
        if rank != BAD:
            assert [bad for bad, _ in seen if bad] == []
            assert events == []
    _, seen, events = rows[BAD]
    since = 0  # the last fault
    for number, (bad, due) in enumerate(seen, start=1):
        since = number if number in faults else since
        assert bad is None or not any(due for _, due in seen[since - 1 : number]), f"step {number}: {bad}"
    assert {event for event, _, _ in events} == {"leave-out"}
    told = {step: fields["reason"] for _, step, fields in events}
    assert [told[3], told[6], told[9]] == ["the loss is nan", *["the gradient is not finite"] * 2]
    if sync != eq.sync.DeTAG(frozen=True, overlap=True):  # which overwrites a model that is not its own
        assert any("parameters" in reason for reason in told.values())
    check_invariants(sync, [worker for worker, _, _ in rows])


def check_invariants(sync: Any, workers: list[Any]) -> None:
    """Trackers track and corrections cancel after all that, as if nothing had happened."""
    if isinstance(sync, eq.sync.AllReduce):
        assert all(torch.equal(w.flat.x, workers[0].flat.x) for w in workers)
    tolerance = 1e-5 if all(not w.stepper.compressed for w in workers) else 1e-2
    if isinstance(sync, eq.sync.DSGT):
        gap = sum(w.sync.tracker - w.sync.gradient_before for w in workers)
        assert gap.abs().max() < tolerance
    if isinstance(sync, eq.sync.DeTAG):
        gap = sum(w.sync.scheme.imbalance() for w in workers)
        assert gap.abs().max() < tolerance
    if isinstance(sync, (eq.sync.D2, eq.sync.EDM, eq.sync.KGT)):
        assert sum(w.sync.correction for w in workers).abs().max() < tolerance
    if isinstance(sync, eq.sync.SGP):
        assert sum(w.sync.weight for w in workers) == pytest.approx(WORKERS)
    for name in {"anchor", "centre_model", "leader_model", "momenta"} & set(sync.STATE) - {"momentum"}:
        if isinstance(sync, eq.sync.QGDSGDm):
            continue  # its own
        assert all(torch.equal(getattr(w.sync, name), getattr(workers[0].sync, name)) for w in workers), name


@every_sync
def test_skip_leaves_no_trace(sync: Any, more: dict[str, Any]) -> None:
    faults = {3 + 2 * i: kind for i, kind in enumerate(PASSING)}
    rows = run(job(sync, "skip", **more), 9, faults, lambda worker, _: not_finite(worker))
    assert [bad for _, seen, _ in rows for bad in seen if bad] == []
    assert [(event, step) for event, step, _ in rows[BAD][2]] == [("skip", 3), ("skip", 5), ("skip", 7)]


@every_sync
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_stop_names_the_worker_before_anything_is_sent(sync: Any, more: dict[str, Any], policy: str) -> None:
    """No other worker ever holds a bad number, and the error names the worker, within a round."""
    for kind in ("loss", "gradient nan", "parameters", "state") if policy == "stop" else ("parameters",):
        elsewhere: list[str | None] = []

        def look(worker: Any, number: int, elsewhere: list[str | None] = elsewhere) -> None:
            if worker.comm.rank != BAD:
                elsewhere.append(not_finite(worker))
            if number == 5:
                worker.stepper.guard.meet()  # as before a checkpoint

        words = rf"^worker {BAD}, step [345]: .* \(--nonfinite (skip|leave-out)\)$"
        overwritten = (sync, kind) in OVERWRITTEN and not more
        with nullcontext() if overwritten else pytest.raises(NonFinite, match=words):
            run(job(sync, policy, **more), 5, {3: kind}, look)
        assert set(elsewhere) == {None}, kind


@every_sync
def test_agreement_costs_what_is_declared(sync: Any, more: dict[str, Any]) -> None:
    """One byte from each to each at a round, or nothing where the weights tell; never anything with another policy."""

    def look(worker: Any, number: int) -> tuple[int, int]:
        return worker.comm.ledger.messages, worker.comm.ledger.bytes

    cost = agreement_cost("leave-out", sync, WORKERS)
    assert cost == ((0, 0) if isinstance(sync, (eq.sync.AllReduce, eq.sync.NoSync)) else (WORKERS - 1, WORKERS - 1))
    assert agreement_cost("stop", sync, WORKERS) == agreement_cost("skip", sync, WORKERS) == (0, 0)
    for rank, (worker, seen, _) in enumerate(run(job(sync, "leave-out", **more), 4, {}, look)):
        declared, rounds = [0, 0], 0
        for number in range(1, 5):
            due = worker.stepper.talks and number % worker.period.steps == 0
            own = worker.sync.cost(worker.context.model_size, rank, WORKERS, due, rounds)
            declared = [a + b + due * c for a, b, c in zip(declared, own, cost, strict=True)]
            rounds += due
        if not (sync.in_flight or isinstance(sync, eq.sync.LSGD)):  # counted later; by a leader that changes
            assert seen[-1] == tuple(declared)


@pytest.mark.parametrize(
    "sync", [eq.sync.AllReduce(), eq.sync.DeTAG(), eq.sync.EASGD()], ids=lambda s: type(s).__name__
)
def test_where_all_is_well_every_policy_gives_the_same_bits(sync: Any) -> None:
    stop, skip, leave_out = (models(sync, policy, 4, {}) for policy in ("stop", "skip", "leave-out"))
    assert torch.equal(stop, skip)
    assert torch.equal(stop, leave_out)


# -- exactly what is left ----------------------------------------------------------------------------------------------
def models(sync: Any, policy: str, steps: int, faults: dict[int, str], **more: Any) -> torch.Tensor:
    """Of every worker, after so many steps."""
    who = more.pop("who", BAD)
    rows = run(job(sync, policy, **more), steps, faults, lambda worker, _: worker.flat.x.double().clone(), who=who)
    return torch.stack([seen[-1] for _, seen, _ in rows])


@pytest.mark.parametrize("kind", ["loss", "parameters"])
@pytest.mark.parametrize(
    "sync",
    [
        eq.sync.PeriodicAverage(),
        eq.sync.PeriodicAverage(weights="samples"),
        eq.sync.DiLoCo(lr=1.0, momentum=0.0),
        eq.sync.DPSGD(),
        eq.sync.SGP(),
        eq.sync.MATCHA(),
        eq.sync.RelaySGD(),
        eq.sync.KGT(),
        eq.sync.ADPSGD(),
    ],
    ids=repr,
)
def test_the_mean_of_the_others_is_kept(sync: Any, kind: str) -> None:
    """After the round, the mean of all models is that of the three workers that were well before it."""
    alone = models(eq.sync.NoSync(), "leave-out", 4, {}, period=4)
    others = alone[[rank for rank in range(WORKERS) if rank != BAD]].mean(0)
    after = models(sync, "leave-out", 4, {3: kind}, period=4)
    assert (after.mean(0) - others).abs().max() < 1e-6
    if isinstance(sync, (eq.sync.PeriodicAverage, eq.sync.DiLoCo, eq.sync.RelaySGD)):
        assert (after - others).abs().max() < 1e-6
    assert (alone.mean(0) - others).abs().max() > 1e-4, "its own steps would have made a difference"


@pytest.mark.parametrize(
    "sync", [eq.sync.DPSGD(), eq.sync.ADPSGD(), eq.sync.MATCHA(), eq.sync.D2(), eq.sync.EDM(), eq.sync.KGT()], ids=repr
)
def test_a_round_after_a_fault_keeps_the_mean(sync: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody corrects for a worker that has lost its part of the correction."""
    before: dict[int, list[torch.Tensor]] = {}
    agree = Guard.before_sending

    def recorded(guard: Guard) -> None:
        agree(guard)
        before.setdefault(guard.step.clock.step + 1, []).append(guard.step.flat.x.double().clone())

    monkeypatch.setattr(Guard, "before_sending", recorded)
    rows = run(job(sync, "leave-out"), 8, {4: "parameters", 7: "state"}, lambda worker, _: worker.flat.x.double())
    for step, models_before in before.items():
        after = torch.stack([seen[step - 1] for _, seen, _ in rows])
        assert (after.mean(0) - torch.stack(models_before).mean(0)).abs().max() < 1e-6, step


def test_who_was_left_out_has_no_say_in_that_round() -> None:
    """It has seen no loss and measured no gradient with the model that it now has."""
    leader = run(job(eq.sync.LSGD(), "leave-out"), 4, {4: "parameters"}, lambda w, _: (w.sync.losses, w.sync.leader))
    assert leader[BAD][1][-1][0] == []
    assert leader[BAD][1][-1][1] != BAD
    weights = run(job(eq.sync.MGRAWA(), "leave-out"), 4, {4: "parameters"}, lambda w, _: w.sync.own_weights.sum())
    assert [float(seen[-1]) > 0 for _, seen, _ in weights] == [rank != BAD for rank in range(WORKERS)]


def test_statistics_of_batch_norm_are_taken_over_too() -> None:
    rows = run(
        job(eq.sync.PeriodicAverage(), "leave-out", model=with_norm), 4, {3: "buffers"}, lambda w, _: not_finite(w)
    )
    assert [seen for _, seen, _ in rows][BAD] == [None, None, "0.1.running_mean", None]
    assert rows[BAD][2] == [("leave-out", 4, {"reason": "the buffers are not finite (1.running_mean)"})]


def test_all_reduce_leaves_out_a_gradient_and_drops_a_step_that_was_spoiled() -> None:
    """A bad gradient has no weight. A bad model is noticed by all in that step, which nobody takes."""
    sync = eq.sync.AllReduce()
    assert torch.equal(models(sync, "leave-out", 6, {3: "gradient nan"}), models(sync, "skip", 6, {3: "loss"}))
    dropped = models(sync, "skip", 6, {3: "loss"}, who=EVERYBODY)
    for kind in ("parameters", "state"):
        assert torch.equal(models(sync, "leave-out", 6, {3: kind}), dropped)


@pytest.mark.parametrize(
    "sync",
    [eq.sync.AllReduce(), eq.sync.PeriodicAverage(state="average"), eq.sync.DSGT(), eq.sync.DiLoCo(delay=1)],
    ids=lambda sync: type(sync).__name__,
)
def test_processes_heal_to_the_same_bits(sync: Any) -> None:
    faults = {2: "gradient nan", 4: "parameters", 6: "state"}

    def look(worker: Any, number: int) -> Any:
        return worker.flat.x.tolist(), worker.comm.ledger.messages, worker.comm.ledger.bytes

    virtual, processes = (run(job(sync, "leave-out"), 8, faults, look, virtual=v) for v in (True, False))
    assert [row[1:] for row in virtual] == [row[1:] for row in processes]


def test_when_nobody_is_well_all_stop_alike() -> None:
    for sync in (eq.sync.AllReduce(), eq.sync.PeriodicAverage()):
        with pytest.raises(NonFinite, match=r"^worker 0, step [34]: .* no worker is left whose numbers are finite"):
            run(job(sync, "leave-out"), 6, {3: "parameters"}, who=EVERYBODY)


# -- what is written ---------------------------------------------------------------------------------------------------
class Breaking(torch.optim.SGD):
    """Its second step loses the model of worker 1."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.steps += 1
        if self.steps == 2 and current_comm().rank == 1:
            self.param_groups[0]["params"][0].fill_(torch.nan)


def breaking(nonfinite: str, folder: Path, **more: Any) -> eq.Run:
    return eq.train(
        plain(), cross_entropy, (INPUTS, TARGETS), optimizer=lambda p: Breaking(p, lr=0.1, momentum=0.9), workers=3,
        batch=2, steps=4, checkpoint_every=1, keep=9, out=folder, nonfinite=nonfinite, **more,
    )  # fmt: skip


@pytest.mark.parametrize("sync", [eq.sync.PeriodicAverage(), eq.sync.NoSync()], ids=["average", "none"])
def test_a_checkpoint_between_rounds_is_of_models_that_are_well(sync: Any, tmp_path: Path) -> None:
    run = breaking("leave-out", tmp_path / "run", sync=sync, period=4)
    told = [(e["worker"], e["step"], e["reason"]) for e in run.events if e["event"] == "leave-out"]
    assert told == [(1, 2, "the parameters are not finite")]
    paths = available(tmp_path / "run")
    assert [path.name for path in paths] == ["step-1", "step-2", "step-3", "step-4"]
    for path in paths:
        states = [read_worker(path, {}, rank) for rank in range(3)]
        assert first_not_finite(states) is None, path


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_all_workers_stop_before_such_a_checkpoint_is_written(policy: str, tmp_path: Path) -> None:
    words = "^worker 1, step 2: the parameters are not finite; .*; the last good checkpoint is .*/checkpoints/step-1$"
    with pytest.raises(NonFinite, match=words):
        breaking(policy, tmp_path / "run", period=4)
    assert [path.name for path in available(tmp_path / "run")] == ["step-1"]


def test_a_mask_of_infinities_is_nothing_bad() -> None:
    class Masked(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    for policy in ("stop", "leave-out"):
        run = eq.train(Masked, cross_entropy, (INPUTS, TARGETS), workers=2, batch=4, steps=2, nonfinite=policy)
        assert run.result["steps"] == 2


def test_workers_that_take_their_own_numbers_of_steps_agree_at_rounds() -> None:
    inputs = INPUTS.clone()
    inputs[31] = torch.nan
    cluster = eq.Cluster(rates=[1000.0, 1000.0, 4000.0])
    run = eq.train(
        plain(), cross_entropy, (inputs, TARGETS), workers=3, steps=12, batch=4, cluster=cluster, nonfinite="leave-out",
        sync=eq.sync.EASGD(), period=eq.period.TotalSteps(steps=6), test=(INPUTS, TARGETS),
    )  # fmt: skip
    assert run.result["models"]["centre"]["loss"] < 2.0


def test_nobody_leaves_a_loop_with_a_model_that_is_lost() -> None:
    def loop(comm: Any) -> bool:
        model = plain()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, period=4, nonfinite="leave-out"):
            for step in range(3):
                cross_entropy(model(INPUTS), TARGETS).backward()
                optimizer.step()
                if comm.rank == BAD and step == 2:
                    model[0].weight.data[0, 0] = torch.nan
        return all(bool(p.isfinite().all()) for p in model.parameters())

    assert eq.spawn(loop, 3, virtual=True) == [True] * 3


def test_orders_and_batch_rules_learn_nothing_from_it() -> None:
    inputs = INPUTS.clone()
    inputs[[5, 31]] = torch.nan
    chosen: dict[str, Any] = {"order": eq.order.CDGraB(), "batch": eq.batch.NormTest(start=2, most=4)}
    for sync, period in ((eq.sync.AllReduce(), 1), (eq.sync.PeriodicAverage(), 2)):
        run = eq.train(
            plain(), cross_entropy, (inputs, TARGETS), workers=3, epochs=3, period=period, sync=sync,
            nonfinite="leave-out", test=(INPUTS, TARGETS), **chosen,
        )  # fmt: skip
        assert run.result["models"]["mean"]["loss"] < 2.0
        assert math.isfinite(run.result["health"]["herding"])
