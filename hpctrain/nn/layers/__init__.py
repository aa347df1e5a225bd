"""The layers: one file for each kind; `hpctrain.nn.LAYERS` names them."""
