"""`Int8` and `Int4`: whole numbers with a scale for each block."""

from __future__ import annotations

from hpctrain.compress.block_coder import Block, Blocks
from hpctrain.kernels.compression.blocks import INT4, INT8


class Int8(Blocks):
    """Numbers -127 to 127 times a scale for each block: the largest number of the block / 127.

    stochastic  round up or down by chance, so that the mean over many steps is right without error feedback too; each
                rank draws numbers of its own, from seed, step, its place and the number's position
    Source: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017.
    """

    block: Block = 256
    stochastic: bool = False

    @property
    def kind(self) -> int:
        """Of the kernels."""
        return INT8


class Int4(Int8):
    """Numbers -7 to 7 times a scale for each block, two in a byte; otherwise as `Int8`."""

    block: Block = 128

    @property
    def kind(self) -> int:
        """Of the kernels."""
        return INT4
