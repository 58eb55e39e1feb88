"""The codes of rows: sizes, errors as theory bounds them, limits, what is not finite, error feedback."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core.errors import UserError
from equipoise.wire.base import Draw
from equipoise.wire.bfloat16 import BFloat16
from equipoise.wire.dct import Dct, dct_matrix
from equipoise.wire.int4 import Int4
from equipoise.wire.int8 import Int8
from equipoise.wire.largest import descending, distinct, largest, top
from equipoise.wire.pack import pack, packed_bytes, unpack
from equipoise.wire.quantise import Quantised, add_dequantised, quantise, scales
from equipoise.wire.rows import RowWire
from equipoise.wire.sign import Sign
from equipoise.wire.sparse import decode_sparse, encode_sparse, kept, two_levels
from equipoise.wire.top_k import TopK

LENGTHS = (1, 2, 3, 7, 63, 64, 65, 255, 256, 257, 4095, 4097, 10000)
WIRES: tuple[RowWire, ...] = (
    Int8(),
    Int8(rounding="stochastic"),
    Int4(),
    Int4(rounding="stochastic"),
    Sign(),
    TopK(),
    TopK(keep=0.3, values=8),
    TopK(keep=0.1, values=32),
    TopK(keep=1, values=2),
    Dct(),
    Dct(keep=0.2, values=8, chunk=48),
    Dct(keep=0.1, values=32),
)
DRAW = Draw(seed=1, rank=0, channel=0, number=0)
BF16 = 2.0**-8  # unit roundoff of scales and magnitudes
every_wire = pytest.mark.parametrize("wire", WIRES, ids=repr)


def decoded(wire: RowWire, vector: torch.Tensor, draw: Draw = DRAW) -> torch.Tensor:
    message, memory = wire.encode(vector, (), draw, None)
    assert message.dtype == torch.uint8
    assert memory is None
    assert len(message) == wire.message_bytes(len(vector))
    out = torch.zeros_like(vector)
    wire.add_decoded(message, out, (), draw)
    return out


def worst(wire: RowWire, length: int) -> float:
    """The largest |C(v) - v|^2 / |v|^2 of a row that theory allows, rounding of the scales included."""
    if isinstance(wire, Quantised):
        half = 2 ** (wire.bits - 1)
        step: float = (1 + 2.01 * BF16) / (half - 0.5 if wire.rounding == "nearest" else half - 1)
        return length * step**2 * (0.25 if wire.rounding == "nearest" else 1.0)
    if isinstance(wire, Sign):
        return 1 - 1 / length + BF16**2
    assert isinstance(wire, (TopK, Dct))
    if isinstance(wire, Dct):
        chunk = min(wire.chunk, length)
        length = -(-length // chunk) * chunk
    count = kept(length, wire.keep)
    if wire.values == 2:
        return 1 - 1 / length + BF16**2
    return 1 - count / length + (count * (1.01 / 127.5) ** 2 / 4 if wire.values == 8 else 0)


def square(vector: torch.Tensor) -> float:
    return float(vector.double().square().sum())


@every_wire
@pytest.mark.parametrize("length", LENGTHS)
def test_the_error_of_a_message_is_as_theory_bounds_it(wire: RowWire, length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    for scale in (1e-20, 1.0, 1e20, 1e30):
        vector = torch.randn(length, generator=generator) ** 3 * scale
        out = decoded(wire, vector)
        bound = worst(wire, wire.length_for(length))
        assert square((out - vector) / scale) <= (bound + 1e-6) * square(vector / scale)


@every_wire
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=80),
    shift=st.integers(-20, 0),
)
def test_any_row_is_within_the_bound(wire: RowWire, values: list[float], shift: int) -> None:
    vector = torch.tensor(values, dtype=torch.float32) * 10.0**shift
    vector[vector.abs() < 1e-30] = 0.0  # below, scales are subnormal and decoded as zero
    unit = float(vector.abs().max()) or 1.0
    out = decoded(wire, vector)
    assert out.isfinite().all()
    bound = worst(wire, wire.length_for(len(vector)))
    assert square((out.double() - vector.double()) / unit) <= (bound + 1e-6) * square(vector.double() / unit)


@every_wire
@pytest.mark.parametrize("length", [1, 7, 64, 4097])
def test_zeros_stay_zeros(wire: RowWire, length: int) -> None:
    assert torch.equal(decoded(wire, torch.zeros(length)), torch.zeros(length))


@every_wire
@pytest.mark.parametrize("length", [1, 7, 64, 5000])
def test_one_huge_element_survives(wire: RowWire, length: int) -> None:
    vector = torch.full((length,), 1e-3)
    vector[length // 2] = -1e30
    out = decoded(wire, vector)
    assert out.isfinite().all()
    if not isinstance(wire, (Sign, Dct)):  # these spread it over the row
        assert float(out[length // 2]) == pytest.approx(-1e30, rel=0.15)
    row = wire.length_for(length)
    assert square((out - vector) / 1e30) <= worst(wire, row) + 1e-6


@every_wire
@pytest.mark.parametrize("length", [1, 7, 64, 5000])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_decoded_to_something_finite(wire: RowWire, length: int, bad: float) -> None:
    for place in {0, length // 2, length - 1}:
        vector = torch.randn(length, generator=torch.Generator().manual_seed(1))
        vector[place] = bad
        row = wire.length_for(length)
        out = decoded(wire, vector).isfinite()
        start = place // row * row
        assert not out[start : start + row].all()
        assert out[:start].all(), "other rows are not touched"
        assert out[start + row :].all()


@every_wire
def test_a_message_depends_on_the_draw_alone(wire: RowWire) -> None:
    vector = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    before = vector.clone()
    message = wire.encode(vector, (), DRAW, None)[0]
    assert torch.equal(vector, before)
    assert torch.equal(message, wire.encode(vector, (), DRAW, None)[0])
    other = wire.encode(vector, (), DRAW._replace(number=1), None)[0]
    assert torch.equal(message, other) != (getattr(wire, "rounding", "nearest") == "stochastic")


@every_wire
def test_bytes_may_begin_anywhere(wire: RowWire) -> None:
    """A message is a part of a buffer with no alignment, and is added with any factor."""
    vector = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    message = wire.encode(vector, (), DRAW, None)[0]
    buffer = torch.zeros(len(message) + 1, dtype=torch.uint8)
    buffer[1:] = message
    out = torch.ones(5000)
    wire.add_decoded(buffer[1:], out, (), DRAW, -0.5)
    torch.testing.assert_close(out, 1 - 0.5 * decoded(wire, vector))


@pytest.mark.parametrize("wire", [TopK(keep=1, values=32), Dct(keep=1, values=32, feedback=1)], ids=repr)
@pytest.mark.parametrize("length", LENGTHS)
def test_everything_in_32_bits_is_the_vector(wire: RowWire, length: int) -> None:
    vector = torch.randn(length, generator=torch.Generator().manual_seed(length))
    message = wire.encode(vector, (), DRAW, None)[0]
    kept_before = message.clone()
    if isinstance(wire, TopK):
        assert torch.equal(decoded(wire, vector), vector)
        assert len(message) == -(-length // wire.length_for(length)) * wire.length_for(length) * 4
    else:
        torch.testing.assert_close(decoded(wire, vector), vector, rtol=0, atol=1e-5)
    vector.zero_()
    assert torch.equal(message, kept_before), "a message in flight does not change with the residual"


def test_bytes_per_element() -> None:
    million = 1 << 20
    sizes = {repr(type(wire)()): 4 * million / type(wire)().message_bytes(million) for wire in WIRES}
    assert sizes[repr(TopK())] == pytest.approx(195.05, abs=0.01)
    assert sizes[repr(Dct())] == sizes[repr(TopK())]
    assert sizes[repr(Int8())] == 4 * 256 / 258
    assert sizes[repr(Int4())] == 4 * 64 / 34
    assert sizes[repr(Sign())] == 4 * 1024 / 130
    assert TopK(values=8).message_bytes(million) > TopK().message_bytes(million)
    assert TopK(values=32).row_bytes(4096) == 64 * 8 // 8 + 64 * 4


@pytest.mark.parametrize("wire", [Int8(rounding="stochastic"), Int4(rounding="stochastic")], ids=repr)
def test_stochastic_rounding_is_unbiased(wire: RowWire) -> None:
    """The mean over draws is within 5 standard errors, element by element, at the ends of the range as well."""
    draws = 4000
    vector = torch.randn(wire.row_length(), generator=torch.Generator().manual_seed(4))
    vector[:3] = torch.tensor([3.7, -3.69, 3.65])
    out = decoded(wire, vector.repeat(draws)).view(draws, -1)
    step = float(torch.unique(out).diff().min())
    error = (out.double().mean(0) - vector).abs()
    assert error.max() <= 5 * (step / 2) / math.sqrt(draws), "an element has a standard deviation of at most step / 2"
    assert out.std(0).max() > 0.4 * step


@pytest.mark.parametrize("bits", [8, 4])
def test_the_whole_range_is_used(bits: int) -> None:
    wire: Quantised = Int8() if bits == 8 else Int4()
    half = 2 ** (bits - 1)
    for vector in (torch.tensor([1.0, -0.5, 0.3]), torch.tensor([-1.0, 0.9, 0.1]), torch.tensor([1.0, -1.0, 0.0])):
        error = (decoded(wire, vector) - vector).abs().max()
        smaller = min(float(vector.max()), -float(vector.min()))
        assert error <= 0.5 * 1.01 * max(1 / half, smaller / (half - 0.5))


@pytest.mark.parametrize("bits", [8, 4])
def test_no_element_is_farther_than_half_a_step(bits: int) -> None:
    """Nor where both ends of the range are reached and the scale had to be rounded."""
    half = 2 ** (bits - 1)
    rows = torch.linspace(1, 2, 500).unsqueeze(1) * torch.tensor([-1.0, (half - 0.5) / half, 0.3, 0.0])
    for signed in (rows, -rows):
        scale = scales(signed.view(-1), 4, half, half - 0.5)
        left = signed.flatten()
        [code] = quantise(signed.flatten(), 4, bits, [(0, 500)])
        add_dequantised([code], left, 4, bits, -1.0)
        assert (left.view(-1, 4).abs() <= 0.50001 * scale.abs()).all()


def test_how_many_are_kept() -> None:
    assert [kept(7, 0.2), kept(4096, 1 / 64), kept(1, 1e-9), kept(5, 1.0)] == [2, 64, 1, 5]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(bits=st.integers(1, 20), count=st.integers(1, 70), seed=st.integers(0, 99))
def test_integers_are_packed_and_unpacked(bits: int, count: int, seed: int) -> None:
    integers = torch.randint(1 << bits, (3, count), generator=torch.Generator().manual_seed(seed))
    codes = pack(integers, bits)
    assert codes.shape == (3 * packed_bytes(count, bits),)
    assert torch.equal(unpack(codes, bits, 3, count).long(), integers)
    assert packed_bytes(8 * count, bits) == bits * count


@pytest.mark.parametrize(("length", "count"), [(4096, 64), (4096, 256), (4096, 257), (4095, 64), (16, 1), (5, 5)])
def test_the_largest_are_chosen(length: int, count: int) -> None:
    rows = torch.randn(20, length, generator=torch.Generator().manual_seed(5)) * 1e20
    rows[0, 1:] = 0
    indices = largest(rows.view(-1), length, count)
    assert (indices.diff(dim=1) > 0).all(), "distinct, in ascending order"
    assert torch.equal(descending(rows.abs().gather(1, indices)), rows.abs().topk(count, dim=1).values)
    short = largest(rows.view(-1)[: -(length // 2)], length, count)
    assert torch.equal(short[:-1], indices[:-1])


def test_of_equal_elements_the_first_count() -> None:
    """So the choice does not depend on the device, nor on whether any elements are equal."""
    rows = torch.tensor([[3, 1, 1, 2, 1], [0, 0, 0, 0, 0], [5, 4, 3, 2, 1]], dtype=torch.int32)
    assert top(rows, 3).tolist() == [[0, 1, 3], [0, 1, 2], [0, 1, 2]]
    generator = torch.Generator().manual_seed(5)
    for most in (3, 100, 2**31 - 1):
        integers = torch.randint(most, (40, 256), generator=generator, dtype=torch.int32)
        expected = integers.sort(dim=1, descending=True, stable=True).indices[:, :20].sort(dim=1).values
        assert torch.equal(top(integers, 20), expected)
        assert torch.equal(distinct(integers).topk(20, dim=1, sorted=False).indices.sort(dim=1).values, expected)


@pytest.mark.parametrize("wire", [BFloat16(), *WIRES], ids=repr)
@pytest.mark.parametrize("length", [1000, 5000])
def test_a_few_rows_at_a_time_are_coded_as_all_are(wire: RowWire, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same is decoded, whatever the processor's cache holds; codes of parts are decoded like one of all rows."""
    vector = torch.randn(length, generator=torch.Generator().manual_seed(4))
    expected = decoded(wire, vector)
    row, parts = wire.divided(length, 3)
    left, out = vector.clone(), torch.zeros(length)
    for (first, last), code in zip(
        parts, wire.encode_rows(left, row, parts, DRAW.source(vector.device), subtract=True), strict=True
    ):
        wire.add_decoded_rows([code, code], out[first * row : last * row], row, 0.5)
    torch.testing.assert_close(left, vector - out, rtol=0, atol=1e-6)
    if row == wire.length_for(length):
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    monkeypatch.setattr("equipoise.wire.rows.CACHED", 300)
    monkeypatch.setattr("equipoise.wire.cast.CACHED", 300)
    torch.testing.assert_close(decoded(wire, vector), expected, rtol=0, atol=0 if not isinstance(wire, Dct) else 1e-6)


@pytest.mark.parametrize("values", [2, 8, 32])
def test_places_and_values_return(values: int) -> None:
    rows = torch.zeros(2, 1000)
    rows[0, torch.tensor([1, 512, 999])] = torch.tensor([4.0, -1.0, 4.0])
    rows[1, torch.tensor([0, 3, 998])] = torch.tensor([-1.0, -4.0, 1.0])
    indices, sent = decode_sparse([encode_sparse(rows.view(-1), 1000, 0.003, values)], 2, 1000, 0.003, values)
    out = torch.zeros_like(rows).scatter_(1, indices[0], sent[0])
    torch.testing.assert_close(out, rows, rtol=0, atol=4.1 / 127 / 2 if values == 8 else 0)


def test_the_two_magnitudes_have_the_least_squared_error() -> None:
    magnitudes = torch.randn(50, 12, generator=torch.Generator().manual_seed(6)).abs().sort(1, descending=True).values
    levels, first = two_levels(magnitudes)

    def error(row: torch.Tensor, n: int) -> float:
        return float(sum((part - part.mean()).square().sum() for part in (row[:n], row[n:]) if len(part)))

    for row, (high, low), n in zip(magnitudes, levels.tolist(), first[:, 0].tolist(), strict=True):
        assert error(row, n) <= min(error(row, m) for m in range(1, 13)) + 1e-6
        assert high == pytest.approx(float(row[:n].mean()), rel=1e-5)
        assert low == pytest.approx(float(row[n:].mean()), rel=1e-4)


def test_two_bits_are_the_best_use_of_the_bytes() -> None:
    vector = torch.randn(1 << 18, generator=torch.Generator().manual_seed(7))
    errors, sizes = [], []
    for values, count in ((2, 64), (8, 39), (32, 16)):
        wire = TopK(keep=count / 4096, values=values)
        errors.append(square(decoded(wire, vector) - vector))
        sizes.append(wire.row_bytes(4096))
    assert max(sizes) - min(sizes) <= 4
    assert errors == sorted(errors)


@pytest.mark.parametrize("length", [1, 2, 48, 64])
def test_the_cosine_transform_is_orthonormal_and_sorts_by_frequency(length: int) -> None:
    matrix = dct_matrix(length, torch.device("cpu"))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(length), rtol=0, atol=1e-6)
    changes = (matrix[:, 1:] * matrix[:, :-1] < 0).sum(1)
    assert changes.tolist() == list(range(length))


def test_a_smooth_vector_is_a_few_coefficients() -> None:
    vector = torch.linspace(0, 3, 4096).sin()
    assert square(decoded(Dct(), vector) - vector) < 0.05 * square(vector)
    assert square(decoded(TopK(), vector) - vector) > 0.9 * square(vector)


@every_wire
def test_error_feedback_sends_everything_in_the_end(wire: RowWire) -> None:
    """The sum of the decoded messages and the residual is the sum of the inputs, and the residual stays bounded."""
    length, rounds = 700, 200
    wire = replace(wire, feedback=1.0, **({"block": 64} if isinstance(wire, (Sign, TopK, Dct)) else {}))
    generator = torch.Generator().manual_seed(8)
    drift = torch.randn(length, generator=generator)
    residual, received, given_in = torch.zeros(length), torch.zeros(length).double(), torch.zeros(length).double()
    norms = []
    for count in range(rounds):
        d = drift + torch.randn(length, generator=generator)
        given_in += d
        residual += d
        message = wire.encode(residual, (), DRAW._replace(number=count), None)[0]
        out = torch.zeros(length)
        wire.add_decoded(message, out, (), DRAW)
        wire.add_decoded(message, residual, (), DRAW, -1.0)
        received += out
        norms.append(float(residual.norm()))
    largest_number = 3 * 64 * 1.5  # of the residual: rounds until an element is sent, times its growth
    assert (received + residual - given_in).abs().max() <= rounds * 2.0**-24 * largest_number
    assert norms[-1] <= 1.2 * max(norms[100:150])
    assert norms[-1] < 0.9 * rounds * float(drift.norm()), "something was sent"


@pytest.mark.parametrize("bad", [{"keep": 0.0}, {"keep": 1.5}, {"values": 4}, {"block": 0}], ids=repr)
def test_options_out_of_range_are_refused(bad: dict[str, float]) -> None:
    for kind in (TopK, Dct):
        with pytest.raises(UserError):
            kind(**bad)  # type: ignore[arg-type]
