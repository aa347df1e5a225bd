"""What test_layers.py needs to know of each family of layers: one module a family."""
