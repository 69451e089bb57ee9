"""Numpy arrays as Flower's arrays and back: the same bytes as Flower's own, with fewer copies."""

import io
import re
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray


def to_array(values: NDArray[Any]) -> Array:
    """The same bytes as ``Array(values)``, in a third of its time: the values are copied once."""
    header = _header(values.dtype.str, values.shape)
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data = b"".join((header, flat.data))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


@lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    values = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, values)
    return stream.getvalue()


def from_array(array: Array) -> NDArray[Any]:
    """The array over the message's own bytes: what `Array.numpy` gives, without its copy.

    Raises
    ------
    ValueError
        Whatever the bytes are, if they are not an array of plain numbers.
    """
    data = array.data
    try:
        start = _START + int.from_bytes(data[_START - 2 : _START], "little")
        shape, fortran, dtype = _layout(data[:start])
        found = np.frombuffer(data, dtype=dtype, offset=start)
        found = found.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # numpy's parser of headers lets many kinds through
        raise ValueError("not an array in numpy's format") from error
    if array.stype != "numpy.ndarray" or found.dtype.kind not in "biuf" or -1 in shape:
        raise ValueError("not an array of plain numbers")
    return found


_START = 10
"""Bytes before the header of numpy's format 1.0; the last two of them are its length."""
_USUAL = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][biuf][1248])', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}(?:, \d{1,18})*,?)?)\), \} *\n",
    re.DOTALL,
)


@lru_cache(maxsize=256)
def _layout(header: bytes) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Shape, order and type from the first bytes of an array in numpy's format.

    Numpy's parser takes longer than everything else about a small array. Headers repeat, and one
    that looks as numpy itself writes it is read without that parser.
    """
    usual = _USUAL.fullmatch(header)
    if usual:
        shape = tuple(int(length) for length in usual[2].split(b",") if length)
        return shape, False, np.dtype(usual[1].decode())
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("format other than 1.0, which only records of named fields need")
    return np.lib.format.read_array_header_1_0(stream)
