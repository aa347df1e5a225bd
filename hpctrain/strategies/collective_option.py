"""`CollectiveName`: the option `collective` of strategies that combine gradients over all ranks."""

from __future__ import annotations

from typing import Annotated

import pydantic

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.choice import AUTO
from hpctrain.errors import unknown_name


def _known(name: str) -> str:
    if name != AUTO and name not in COLLECTIVES:
        raise ValueError(unknown_name(COLLECTIVES.kind, name, [AUTO, *COLLECTIVES]).message)
    return name


CollectiveName = Annotated[str, pydantic.AfterValidator(_known)]  # "auto", or a name of `comm.collectives`
