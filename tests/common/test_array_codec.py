"""Arrays on the wire: numpy's own bytes, read without numpy's parser where they look as usual."""

import io

import numpy as np
import pytest
from flwr.app import Array

from fedrecgel.common.array_codec import _USUAL, from_array, to_array

SHAPES = [(), (0,), (3,), (2, 3), (0, 160), (12_000, 2), (1, 2, 3, 4)]


@pytest.mark.flower
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "bool", "uint8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_are_flowers_own_and_read_back(shape: tuple[int, ...], dtype: str) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    array = to_array(values)
    assert array == Array(values)
    found = from_array(array)
    assert (found.dtype, found.shape) == (values.dtype, shape)
    assert np.array_equal(found, values)


@pytest.mark.flower
@pytest.mark.parametrize("shape", SHAPES)
def test_a_header_as_numpy_writes_it_needs_no_parser(shape: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    np.save(stream, np.empty(shape, dtype=np.float32))
    data = stream.getvalue()
    assert _USUAL.fullmatch(data[: 10 + int.from_bytes(data[8:10], "little")])


@pytest.mark.flower
def test_other_headers_are_numpys_business() -> None:
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    stream = io.BytesIO()
    np.save(stream, values)
    array = Array("float64", (2, 3), "numpy.ndarray", stream.getvalue())
    assert np.array_equal(from_array(array), values)
    odd = stream.getvalue().replace(b"<f8", b">f8")
    big = from_array(Array("float64", (2, 3), "numpy.ndarray", odd))
    assert np.array_equal(big, values.view(big.dtype))
