"""`Float16` and `BFloat16`: floats of 16 bits."""

from __future__ import annotations

from hpctrain.compress.block_coder import Blocks
from hpctrain.kernels.compression.blocks import BFLOAT16, FLOAT16


class Float16(Blocks):
    """IEEE half precision (11 significant bits), scaled by a power of two for each 256 numbers.

    The scale is found anew for what each rank sends, and for the sum, which is taken in float32: nothing can overflow.
    """

    error_feedback: bool = False

    @property
    def kind(self) -> int:
        """Of the kernels."""
        return FLOAT16


class BFloat16(Blocks):
    """The upper half of a float32 (8 significant bits): its range, so that nothing need be scaled."""

    error_feedback: bool = False

    @property
    def kind(self) -> int:
        """Of the kernels."""
        return BFLOAT16
