"""How a step's gradients become their sum over all ranks: one file a way, behind the contract in `base.py`."""
