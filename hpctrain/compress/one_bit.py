"""`OneBit`: signs, with a size for each block."""

from __future__ import annotations

from pydantic import Field

from hpctrain.compress.block_coder import Block, Blocks
from hpctrain.kernels.compression.blocks import SIGNS


class OneBit(Blocks):
    """A bit a number: the sign; and for each block the mean of the numbers' sizes.

    The first 500 updates send everything as it is: while gradients are large and turn fast, what one bit drops comes
    back too late, and where momentum has moved on it does harm that the run does not make good again.

    Source: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training
    of speech DNNs", Interspeech 2014; Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019.  The warm-up:
    Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed", ICML 2021.
    """

    warm_up_steps: int = Field(500, ge=0)
    block: Block = 128

    @property
    def kind(self) -> int:
        """Of the kernels."""
        return SIGNS
