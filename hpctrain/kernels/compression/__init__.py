"""Kernels that encode and decode gradients; `hpctrain.compress` says what each is for."""
