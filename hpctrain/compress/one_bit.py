"""`OneBit`: signs, with a size for each block."""

from __future__ import annotations

from hpctrain.compress.block_coder import Block, Blocks
from hpctrain.kernels.compression.blocks import SIGNS


class OneBit(Blocks):
    """A bit a number: the sign; and for each block the mean of the numbers' sizes.

    Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training
    of speech DNNs", Interspeech 2014; Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019.
    """

    block: Block = 256

    @property
    def kind(self) -> int:
        """Of the kernels."""
        return SIGNS
