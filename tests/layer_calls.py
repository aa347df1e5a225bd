"""`LayerCalls`: runs what a layer built, by itself and without the composer, and checks its gradients.

All memory that the contract does not promise to be filled holds NaN: a kernel that reads it is found out.
"""

from __future__ import annotations

import numpy as np

from hpctrain.nn.layers.base import calls_of


class LayerCalls:
    """One layer's passes on given inputs; `values` holds every array by the name that kernels know it by."""

    def __init__(self, layer, inputs, dtype=np.float64, seed=3, fused=None):
        built = layer.build_many(tuple(array.shape[1:] for array in inputs))
        self._set_up(built.fused[fused] if fused else built, inputs, dtype, seed)

    @classmethod
    def of_built(cls, built, inputs, dtype=np.float64, seed=3):
        """Take what a layer has built already."""
        calls = cls.__new__(cls)
        calls._set_up(built, inputs, dtype, seed)
        return calls

    def _set_up(self, built, inputs, dtype, seed):
        self.built = built
        self.dtype, self.rows = dtype, len(inputs[0])
        random = np.random.default_rng(seed)
        self.values = {"y": self.empty(self.built.out_shape), "dy": self.empty(self.built.out_shape)}
        for index, array in enumerate(inputs):
            names = [f"x{index}"] if len(inputs) > 1 else ["x"]
            for name in names:
                self.values[name] = array.astype(dtype)
                self.values[f"d{name}"] = self.empty(array.shape[1:])
        for spec in self.built.params:
            self.values[spec.name] = (0.5 * random.normal(size=spec.shape)).astype(dtype)
            self.values[f"d_{spec.name}"] = np.full(spec.shape, np.nan, dtype)
        for spec in self.built.state:
            self.values[spec.name] = np.full(spec.shape, spec.initial, dtype)
            self.values[f"d_{spec.name}"] = np.zeros(spec.shape, dtype)
        self.constants = {"ids": np.arange(self.rows) + 100, "seed": np.uint64(11), "step": 4, "layer": 1}
        self.constants["rows"] = self.rows
        for name, spec in self.built.buffers.items():
            self.values[name] = self.empty(spec.shape) if spec.per_example else np.full(spec.shape, np.nan, dtype)

    @property
    def learned(self):
        """Names of what has a gradient that is checked."""
        return [*(spec.name for spec in self.built.params), "x" if "x" in self.values else "x0"]

    @property
    def inputs(self):
        """Names of the inputs, in their order."""
        return [name for name in self.values if name == "x" or (name[0] == "x" and name[1:].isdigit())]

    def empty(self, shape):
        return np.full((self.rows, *shape), np.nan, self.dtype)

    def run(self, calls, beta=0.0):
        for call in calls_of(calls):
            call.kernel(*(self.argument(arg, beta) for arg in call.args))

    def argument(self, arg, beta):
        if not isinstance(arg, str):
            return arg
        if arg == "beta":
            return beta
        if arg in self.constants:
            return self.constants[arg]
        array = self.values[arg]
        trailing = self.built.views.get(arg)
        if trailing is None:
            return array
        size = int(np.prod(trailing, dtype=int))
        return array.reshape(array.size // size, *trailing)

    def forward(self):
        self.pass_on(self.built.forward)
        return self.values["y"].astype("f8")

    def predict(self):
        """Run evaluation's pass and return its result."""
        self.pass_on(self.built.forward if self.built.predict is None else self.built.predict)
        return self.values["y"].astype("f8")

    def pass_on(self, calls):
        """Run a pass, or where it moves no data, take the first input as it is."""
        if calls_of(calls):
            self.run(calls)
        else:
            self.values["y"][...] = self.values["x" if "x" in self.values else "x0"].reshape(self.values["y"].shape)

    def gradients(self, dy, beta=0.0):
        """Run backward for the gradient dy of the outputs; return all gradients by the name of what they belong to."""
        self.values["dy"][...] = dy
        calls = calls_of(self.built.backward)
        if beta == 0.0 and not any("beta" in call.args for call in calls):
            for spec in self.built.params:  # as the composer does for kernels that only add
                self.values[f"d_{spec.name}"][...] = 0.0
        if calls:
            self.run(calls, beta)
        else:
            for name in self.inputs:
                self.values[f"d{name}"][...] = self.values["dy"].reshape(self.values[f"d{name}"].shape)
        return {name: self.values[f"d{'' if name[0] == 'x' else '_'}{name}"].astype("f8") for name in self.learned}

    def check_gradients(self, rel=1e-6):
        """Compare every gradient with the change of sum(dy y) along two random directions (central differences)."""
        random = np.random.default_rng(8)
        dy = random.normal(size=self.values["y"].shape)
        self.forward()
        gradients = self.gradients(dy)
        for name in self.learned:
            values = self.values[name]
            kept = values.copy()
            for _ in range(2):
                direction = random.normal(size=values.shape)
                sums = []
                for sign in (1, -1):
                    values[...] = kept + sign * 1e-6 * direction
                    sums.append(np.sum(dy * self.forward()))
                values[...] = kept
                expected = (sums[0] - sums[1]) / 2e-6
                found = np.sum(gradients[name] * direction)
                assert abs(found - expected) <= rel * (1 + abs(expected)), f"{name}: {found} but {expected}"
        return gradients
