"""Arrays for many rows, in huge pages where the system gives them: rows are then found in them more quickly."""

from __future__ import annotations

import numpy as np

from hpctrain.data.format import Arrays, RowFormat
from hpctrain.memory import aligned_zeros


def large_arrays(form: RowFormat, rows: int) -> Arrays:
    """Return arrays as `RowFormat.empty` makes them; what is never written to takes no memory."""
    shapes = form.empty(0)
    return tuple(
        aligned_zeros(rows * int(np.prod(array.shape[1:])), array.dtype).reshape(rows, *array.shape[1:])
        for array in shapes
    )
