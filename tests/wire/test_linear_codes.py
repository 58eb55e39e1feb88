"""Random-k and PowerSGD: what their theory says, over shapes and scales, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.wire.base import Draw, Piece, pieces_of
from equipoise.wire.linear import LinearWire
from equipoise.wire.power_sgd import PowerSGD, orthonormal
from equipoise.wire.random_k import RandomK, sample

EPSILON = torch.finfo(torch.float32).eps
Shapes = tuple[tuple[int, ...], ...]
SHAPES: list[Shapes] = [
    ((1, 1),),
    ((1, 9),),
    ((9, 1),),
    ((3, 5),),
    ((7,),),
    ((),),
    ((64, 784), (64,), (10, 64), (10,)),
    ((8, 3, 5, 5), (8,), (16, 8, 3, 3)),
]
WIRES: list[LinearWire] = [RandomK(keep=1 / 4), RandomK(), PowerSGD(rank=1), PowerSGD(), PowerSGD(rank=4)]
over_shapes = pytest.mark.parametrize("shapes", SHAPES, ids=str)
over_wires = pytest.mark.parametrize("wire", WIRES, ids=lambda w: f"{type(w).__name__}-{getattr(w, 'rank', '')}")


def elements_of(shapes: Shapes) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes)


def vectors_for(shapes: Shapes, workers: int = 1, seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(elements_of(shapes), generator=source) * scale for _ in range(workers)]


def advanced(steps: Any, value: torch.Tensor | None) -> tuple[Any, Any]:
    """The next message, or None and what the compression returned."""
    try:
        return steps.send(value), None
    except StopIteration as end:
        return None, end.value


def summed(
    wire: LinearWire, vectors: list[torch.Tensor], pieces: tuple[Piece, ...], count: int = 0, memory: Any = None
) -> tuple[torch.Tensor, list[torch.Tensor], Any]:
    """One sum over workers, each with a rank of its own: what all decode, what each has left, the next memory."""
    left = [vector.clone() for vector in vectors]
    draws = [Draw(seed=1, rank=rank, channel=0, number=count) for rank in range(len(vectors))]
    steps = [wire.compress(v, pieces, draw, memory) for v, draw in zip(left, draws, strict=True)]
    states, sums = [advanced(step, None) for step in steps], []
    while all(message is not None for message, _ in states):
        sums.append(torch.stack([message for message, _ in states]).sum(0))
        for message, _ in states:
            message.copy_(sums[-1])  # a collective may work in place
        states = [advanced(step, message) for step, (message, _) in zip(steps, states, strict=True)]
    assert all(message is None for message, _ in states), "all workers need the same stages"
    ends = [end for _, end in states]
    assert [len(part) for part in sums] == wire.lengths(len(vectors[0]), pieces)
    assert wire.message_bytes(len(vectors[0]), pieces) == 4 * sum(map(len, sums))
    decoded = [torch.full_like(vectors[0], torch.nan) for _ in draws]
    for out, draw in zip(decoded, draws, strict=True):
        wire.expand(sums, out, pieces, draw)
    for other, kept in zip(decoded, ends, strict=True):
        assert torch.equal(other.nan_to_num(7), decoded[0].nan_to_num(7)), "all workers decode the same"
        for name in kept or {}:
            assert torch.equal(kept[name].nan_to_num(7), ends[0][name].nan_to_num(7)), "memories are the same"
    return decoded[0], left, ends[0]


@over_wires
@over_shapes
def test_the_parts_add_up_and_each_is_a_contraction(wire: LinearWire, shapes: Shapes) -> None:
    vectors, pieces = vectors_for(shapes, workers=3), pieces_of(shapes)
    total, left, _ = summed(wire, vectors, pieces)
    norm = torch.stack(vectors).norm()
    assert (total + torch.stack(left).sum(0) - torch.stack(vectors).sum(0)).norm() <= 16 * EPSILON * norm
    for vector, rest in zip(vectors, left, strict=True):
        assert rest.norm() <= (1 + 16 * EPSILON) * vector.norm()
        assert rest @ (vector - rest) == pytest.approx(0, abs=32 * EPSILON * float(vector.norm() ** 2)), "a projection"


@over_wires
@over_shapes
def test_the_sum_of_messages_is_the_message_of_the_sum(wire: LinearWire, shapes: Shapes) -> None:
    vectors, pieces = vectors_for(shapes, workers=3), pieces_of(shapes)
    total, _, _ = summed(wire, vectors, pieces)
    one, _, _ = summed(wire, [torch.stack(vectors).sum(0)], pieces)
    assert (total - one).norm() <= 100 * EPSILON * torch.stack(vectors).norm(), "100: the condition of M Q"


@over_wires
@over_shapes
def test_one_sender(wire: LinearWire, shapes: Shapes) -> None:
    """A receiver has the message alone, wherever it lies in memory, and decodes what the sender does, to the bit."""
    [vector], pieces, draw = vectors_for(shapes), pieces_of(shapes), Draw(seed=1, rank=0, channel=0, number=0)
    message, memory = wire.encode(vector, pieces, draw, None)
    total, [left], expected = summed(wire, [vector], pieces)
    assert len(message) == wire.message_bytes(len(vector), pieces)
    assert torch.equal(left, vector - total)
    out = torch.ones_like(vector)
    wire.add_decoded(message, out, pieces, draw, alpha=-2.0)
    assert torch.equal(out, torch.ones_like(vector).add_(total, alpha=-2.0))
    assert (memory is None) == (expected is None)
    assert memory is None or torch.equal(memory["factors"], expected["factors"])
    for shift in (4, 12, 20):
        moved = torch.cat([message.new_zeros(shift), message])[shift:]
        again = torch.ones_like(vector)
        wire.add_decoded(moved, again, pieces, draw, alpha=-2.0)
        assert torch.equal(again, out)


@over_wires
@over_shapes
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_every_scale(wire: LinearWire, shapes: Shapes, scale: float) -> None:
    """The message of s e is s times that of e, also after a round at another scale."""
    vectors, pieces = vectors_for(shapes, workers=2), pieces_of(shapes)
    expected, _, memory = summed(wire, vectors, pieces)
    total, left, scaled_memory = summed(wire, [vector * scale for vector in vectors], pieces)
    assert torch.isfinite(torch.stack([total, *left])).all()
    limit = 100 * EPSILON * torch.stack(vectors).norm()
    assert (total / scale - expected).norm() <= limit
    expected, _, _ = summed(wire, vectors, pieces, 1, memory)
    total, _, _ = summed(wire, vectors, pieces, 1, scaled_memory)
    assert (total - expected).norm() <= limit


@over_wires
@over_shapes
def test_nothing_is_sent_as_nothing(wire: LinearWire, shapes: Shapes) -> None:
    zeros, pieces = torch.zeros(elements_of(shapes)), pieces_of(shapes)
    total, [left], memory = summed(wire, [zeros], pieces)
    assert torch.equal(total, zeros)
    assert torch.equal(left, zeros)
    assert memory is None or not memory["factors"].any()


@over_wires
@over_shapes
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_arrives_so_and_leaves_no_trace(wire: LinearWire, shapes: Shapes, bad: float) -> None:
    vectors, pieces = vectors_for(shapes, workers=3), pieces_of(shapes)
    for place in {0, len(vectors[0]) // 2, len(vectors[0]) - 1}:
        damaged = [vectors[0].clone(), *vectors[1:]]
        if isinstance(wire, RandomK):
            damaged[0].fill_(torch.nan)  # as channels do: the place may not be among those that are drawn
        else:
            damaged[0][place] = bad
        total, left, memory = summed(wire, damaged, pieces)
        assert not torch.isfinite(total).all()
        assert not torch.isfinite(left[0]).all()
        after, _, _ = summed(wire, vectors, pieces, count=1, memory=memory)
        assert torch.isfinite(after).all()


@pytest.mark.parametrize("feedback", [1.0, 0.0])
@over_shapes
def test_the_limits_are_exact(shapes: Shapes, feedback: float) -> None:
    [vector], pieces = vectors_for(shapes), pieces_of(shapes)
    for wire in (RandomK(keep=1, feedback=feedback), PowerSGD(rank=64, feedback=feedback)):
        total, [left], _ = summed(wire, [vector], pieces)
        assert torch.equal(total, vector)
        assert not left.any()


@over_wires
@pytest.mark.parametrize("shapes", [((16, 98), (16,), (3, 16), (3,)), ((8, 3, 5, 5), (8,))], ids=str)
def test_error_feedback_loses_nothing(wire: LinearWire, shapes: Shapes) -> None:
    pieces, rounds, memory = pieces_of(shapes), 200, None
    zeros = torch.zeros(elements_of(shapes))
    residuals, sent, put_in, largest = [zeros.clone() for _ in range(3)], zeros.double(), zeros.double(), 0.0
    for count in range(rounds):
        gradients = vectors_for(shapes, workers=3, seed=count)
        for residual, gradient in zip(residuals, gradients, strict=True):
            residual.add_(gradient)
            put_in += gradient
        largest = max(largest, float(torch.stack(residuals).norm()))
        total, residuals, memory = summed(wire, residuals, pieces, count, memory)
        sent += total
    left = torch.stack(residuals).double().sum(0)
    assert (sent + left - put_in).norm() <= 16 * EPSILON * rounds * largest
    assert left.norm() < 0.95 * put_in.norm(), "something was sent"


# -- random-k ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("k", "elements"), [(1, 1), (1, 5), (3, 7), (5, 7), (7, 7), (4, 12), (0, 0)])
def test_every_element_is_drawn_equally_often_and_at_most_once(k: int, elements: int) -> None:
    draws, counts = 2000, torch.zeros(elements)
    for count in range(draws):
        kept = sample(k, elements, Draw(seed=3, rank=0, channel=0, number=count))
        assert len(set(kept.tolist())) == k
        counts[kept] += 1
    chance = k / max(elements, 1)
    assert ((counts / draws - chance).abs() <= 4.5 * (chance * (1 - chance) / draws) ** 0.5).all()


def test_the_sample_is_that_of_all_workers_and_of_one_message() -> None:
    first = sample(16, 1000, Draw(seed=3, rank=0, channel=0, number=0))
    assert torch.equal(first, sample(16, 1000, Draw(seed=3, rank=5, channel=0, number=0)))
    for other in (Draw(4, 0, 0, 0), Draw(3, 0, 1, 0), Draw(3, 0, 0, 1)):
        assert not torch.equal(first, sample(16, 1000, other))


def test_random_k_is_unbiased_without_feedback_and_contracts_with_it() -> None:
    [vector], draws = vectors_for(((11,),)), 1000
    [k] = RandomK(keep=0.3).lengths(11, ())
    assert k == 3
    unbiased, contracted = (
        torch.stack([summed(wire, [vector], (), count)[0] for count in range(draws)])
        for wire in (RandomK(keep=0.3, feedback=0), RandomK(keep=0.3))
    )
    variance = vector**2 * (11 / k - 1)
    assert ((unbiased.mean(0) - vector).abs() <= 4.5 * (variance / draws).sqrt()).all()
    lost = ((contracted - vector) ** 2).sum(1)
    expected, deviation = (1 - k / 11) * float(vector @ vector), float(lost.std()) / draws**0.5
    assert float(lost.mean()) == pytest.approx(expected, abs=4.5 * deviation)


def test_random_k_sends_a_part() -> None:
    assert RandomK().lengths(1_000_000, ()) == [15_625]
    assert RandomK().lengths(10, ()) == [1]
    assert RandomK().lengths(0, ()) == [0]
    assert not len(summed(RandomK(), [torch.empty(0)], ())[0])


# -- PowerSGD ----------------------------------------------------------------------------------------------------------
def low_rank(rows: int, columns: int, rank: int, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, rank, generator=source) @ torch.randn(rank, columns, generator=source)


def test_power_sgd_sends_two_factors_or_what_is_smaller() -> None:
    pieces = pieces_of(((64, 784), (64,), (3, 5), (4, 4), (5, 7)))
    assert PowerSGD(rank=2).lengths(64 * 784 + 64 + 66, pieces) == [2 * (64 + 5) + 64 + 15 + 16, 2 * (784 + 7)]
    assert PowerSGD(rank=4).lengths(64 * 784 + 64 + 66, pieces) == [4 * 64 + 64 + 66, 4 * 784]
    assert PowerSGD(rank=2).lengths(79, pieces_of(((64,), (3, 5)))) == [79], "no second message without matrices"


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_matrix_of_that_rank_is_exact(rank: int) -> None:
    """Also when the round before had fewer directions, or others."""
    wire, pieces, memory = PowerSGD(rank=rank), (Piece(0, 40, 60),), None
    for count, matrix in enumerate([low_rank(40, 60, rank), low_rank(40, 60, 1, 1), low_rank(40, 60, rank, 2)]):
        total, _, memory = summed(wire, [matrix.view(-1)], pieces, count, memory)
        assert (total - matrix.view(-1)).norm() <= 100 * EPSILON * matrix.norm()


def test_a_warm_start_finds_the_best_approximation() -> None:
    noise = torch.randn(48, 96, generator=torch.Generator().manual_seed(5))
    matrix, pieces, wire = low_rank(48, 96, 4) + noise, (Piece(0, 48, 96),), PowerSGD(rank=4)
    memory, warm = None, []
    for count in range(5):
        total, _, memory = summed(wire, [matrix.view(-1)], pieces, count, memory)
        warm.append(float((total - matrix.view(-1)).norm()))
    cold = float((summed(wire, [matrix.view(-1)], pieces, 4)[0] - matrix.view(-1)).norm())
    best = float(torch.linalg.svdvals(matrix)[4:].norm())
    assert best * (1 - 100 * EPSILON) <= warm[-1] <= 1.0001 * best < 1.05 * best < cold


@pytest.mark.parametrize("before", [0.0, torch.nan, torch.inf])
def test_a_direction_that_vanished_is_drawn_again(before: float) -> None:
    """The only column that counts is the last one: no fixed direction, such as the first axis, would find it."""
    wire, pieces = PowerSGD(rank=1), (Piece(0, 20, 30),)
    _, _, memory = summed(wire, [torch.full((600,), before)], pieces)
    matrix = torch.zeros(20, 30)
    matrix[:, -1] = torch.arange(20)
    total, _, _ = summed(wire, [matrix.view(-1)], pieces, 1, memory)
    assert (total - matrix.view(-1)).norm() <= 100 * EPSILON * matrix.norm()


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 1e37])
@pytest.mark.parametrize("kind", ["random", "zeros", "one zero", "collinear", "nearly", "unlike scales"])
def test_rows_are_orthonormal_whatever_they_were(kind: str, scale: float) -> None:
    rows = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    if kind == "zeros":
        rows.zero_()
    elif kind == "one zero":
        rows[1] = 0
    elif kind == "collinear":
        rows[2] = -3 * rows[0]
    elif kind == "nearly":
        rows[2] = rows[0] * (1 + 2 * EPSILON)
    elif kind == "unlike scales":
        rows[2] *= 1e-6
    rows *= scale
    basis = orthonormal(rows)
    assert torch.allclose(basis @ basis.T, torch.eye(4), atol=16 * EPSILON, rtol=0)
    left = rows / scale - (rows / scale) @ basis.T @ basis
    assert (left.norm(dim=1) <= 32 * EPSILON * (rows / scale).norm(dim=1) + 1e-30).all(), "the same span"


# -- pieces ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shapes", [((3, 4), (5,), (2, 2, 3)), ((), (4, 1), (1, 4)), ((0, 3), (2, 3), (3, 0), (7,))])
def test_pieces_cover_a_part_once_and_in_order(shapes: Shapes) -> None:
    elements, row_of, places = elements_of(shapes), {}, 0
    for index, shape in enumerate(shapes):
        columns = torch.Size(shape[1:]).numel() if len(shape) > 1 else 1
        for inner in range(torch.Size(shape).numel()):
            row_of[places] = index, inner // columns, inner % columns, columns
            places += 1
    for start in range(elements + 1):
        for stop in range(start, elements + 1):
            pieces, place = pieces_of(shapes, start, stop), 0
            for piece in pieces:
                assert piece.start == place
                assert piece.rows > 0 < piece.columns
                tensors = {row_of[start + place + i][0] for i in range(piece.rows * piece.columns)}
                assert len(tensors) == 1, "a piece is of one tensor"
                if piece.columns > 1:
                    _, _, inner, columns = row_of[start + place]
                    assert (inner, columns) == (0, piece.columns), "a matrix has whole rows"
                place += piece.rows * piece.columns
            assert place == stop - start
            whole = {i for i in range(start, stop) if row_of[i][3] > 1 and _row_inside(row_of, i, start, stop)}
            matrices = {start + p.start + i for p in pieces if p.columns > 1 for i in range(p.rows * p.columns)}
            assert matrices == whole, "whole rows stay matrices"
            assert len(pieces) <= 3 * len(shapes)
    assert pieces_of(shapes) == pieces_of(shapes, 0, elements)


def _row_inside(row_of: dict[int, tuple[int, int, int, int]], i: int, start: int, stop: int) -> bool:
    _, _, inner, columns = row_of[i]
    return start <= i - inner and i - inner + columns <= stop


def test_a_matrix_that_is_not_cut_is_one_piece() -> None:
    assert pieces_of(((3, 4), (5,), (2, 2, 3))) == (Piece(0, 3, 4), Piece(12, 5, 1), Piece(17, 2, 6))
    assert pieces_of(((4, 3),), 1, 11) == (Piece(0, 2, 1), Piece(2, 2, 3), Piece(8, 2, 1))
