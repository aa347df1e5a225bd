"""Recurrent layers, one direction: what happens step by step, between the projections of all steps at once.

The input's part of every gate comes from one matrix product over all steps (`projection.project`), and so do the weight
gradients; here stay the products with the hidden state, one a step, and the elementwise formulas.  Matrices with a row
for each step have rows * steps of them, step by step within an example.

The elementwise work is many short loops on slices on purpose: each has few enough arrays for LLVM to tell apart, and
indices that cannot be negative (which numba would count from the end), so that it is vectorised.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.gemm import gemm
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.vector_math import sigmoid, tanh


@kernel
def lstm_forward(
    gates: np.ndarray,
    weight: np.ndarray,
    hidden: np.ndarray,
    cells: np.ndarray,
    state: np.ndarray,
    cell: np.ndarray,
    added: np.ndarray,
    steps: int,
    at: int,
    reverse: bool,
    mask: np.ndarray,
    masked: bool,
) -> None:
    """Hochreiter & Schmidhuber 1997 with forget gates; the gates in PyTorch's order i, f, g, o:

        i, f, o = sigmoid(a), g = tanh(a) with a = gates[t] + h[t-1] weight;
        c[t] = f c[t-1] + i g;  h[t] = o tanh(c[t])

    gates (rows * steps, 4 units) holds the input's part and is overwritten by i, f, g, o; weight (units, 4 units);
    hidden (rows * steps, at + units or more) gets h in columns at, at + 1, ...; cells (rows * steps, units) gets c.
    Scratch: state, cell (rows, units), added (rows, 4 units).  `reverse`: from the last step to the first.
    mask (rows * steps,), read if `masked`: a step where it is 0 passes h and c on as they are.
    """
    rows, units = cell.shape
    state[:] = 0.0
    cell[:] = 0.0
    for n in range(steps):
        t = steps - 1 - n if reverse else n
        if n > 0:
            gemm(0, 0, state, weight, 0.0, added)
        else:
            added[:] = 0.0
        for r in range(rows):
            gate, more, c, h = gates[r * steps + t], added[r], cell[r], state[r]
            for j in range(4 * units):
                gate[j] += more[j]
            i, f = gate[:units], gate[units : 2 * units]
            g, o = gate[2 * units : 3 * units], gate[3 * units :]
            for j in range(2 * units):
                gate[j] = sigmoid(gate[j])
            for j in range(units):
                g[j] = tanh(g[j])
            for j in range(units):
                o[j] = sigmoid(o[j])
            for j in range(units):
                c[j] = f[j] * c[j] + i[j] * g[j]
            for j in range(units):
                h[j] = o[j] * tanh(c[j])
            kept, out = cells[r * steps + t], hidden[r * steps + t, at : at + units]
            for j in range(units):
                kept[j] = c[j]
            for j in range(units):
                out[j] = h[j]
        if masked:
            keep_states(mask, cells, cell, steps, t, 0, reverse)
            keep_states(mask, hidden, state, steps, t, at, reverse)


@kernel
def lstm_backward(
    gates: np.ndarray,
    weight: np.ndarray,
    cells: np.ndarray,
    dy: np.ndarray,
    d_gates: np.ndarray,
    d_state: np.ndarray,
    d_cell: np.ndarray,
    d_step: np.ndarray,
    work: np.ndarray,
    steps: int,
    at: int,
    reverse: bool,
    every: bool,
    mask: np.ndarray,
    masked: bool,
) -> None:
    """d_gates, the gradients of the gates before their sigmoid and tanh, backward through time.

    `every`: dy (rows * steps, ...) is the gradient of each step's h, in columns at, at + 1, ...; else dy (rows, ...)
    is that of the last step's alone.  `mask` as in forward: d_gates is 0 at steps that are left out.  Scratch: d_state,
    d_cell, work (rows, units), d_step (rows, 4 units).
    """
    rows, units = d_cell.shape
    one = dy.dtype.type(1)
    d_state[:] = 0.0
    d_cell[:] = 0.0
    for n in range(steps - 1, -1, -1):
        t = steps - 1 - n if reverse else n
        add_step(dy, d_state, steps, t, at, every, n == steps - 1)
        for r in range(rows):
            gate, step, dh, dc, wide = gates[r * steps + t], d_step[r], d_state[r], d_cell[r], work[r]
            kept = d_gates[r * steps + t]
            if masked and mask[r * steps + t] == 0:
                for j in range(4 * units):
                    step[j] = 0.0
                for j in range(4 * units):
                    kept[j] = 0.0
                continue
            i, f = gate[:units], gate[units : 2 * units]
            g, o = gate[2 * units : 3 * units], gate[3 * units :]
            d_i, d_f = step[:units], step[units : 2 * units]
            d_g, d_o = step[2 * units : 3 * units], step[3 * units :]
            c = cells[r * steps + t]
            for j in range(units):
                wide[j] = tanh(c[j])
            for j in range(units):
                d_o[j] = dh[j] * wide[j] * o[j] * (one - o[j])
            for j in range(units):
                dc[j] += dh[j] * o[j] * (one - wide[j] * wide[j])
            for j in range(units):
                d_i[j] = dc[j] * g[j] * i[j] * (one - i[j])
            if n > 0:
                before = cells[r * steps + (t + 1 if reverse else t - 1)]
                for j in range(units):
                    d_f[j] = dc[j] * before[j] * f[j] * (one - f[j])
            else:
                for j in range(units):
                    d_f[j] = 0.0
            for j in range(units):
                d_g[j] = dc[j] * i[j] * (one - g[j] * g[j])
            for j in range(units):
                dc[j] *= f[j]
            for j in range(4 * units):
                kept[j] = step[j]
            if masked:  # where the step is real, the gradient of h goes on by way of the gates alone
                for j in range(units):
                    dh[j] = 0.0
        if n > 0:
            gemm(0, 1, d_step, weight, 1.0 if masked else 0.0, d_state)


@kernel
def gru_forward(
    gates: np.ndarray,
    weight: np.ndarray,
    candidate_bias: np.ndarray,
    hidden: np.ndarray,
    candidates: np.ndarray,
    state: np.ndarray,
    added: np.ndarray,
    steps: int,
    at: int,
    reverse: bool,
    mask: np.ndarray,
    masked: bool,
) -> None:
    """Cho et al. 2014, in the form of PyTorch and cuDNN; the gates in the order r, z, n:

        r, z = sigmoid(gates[t] + a), n = tanh(gates[t] + r (a + candidate_bias)) with a = h[t-1] weight;
        h[t] = (1 - z) n + z h[t-1]

    gates (rows * steps, 3 units) holds the input's part and is overwritten by r, z, n; weight (units, 3 units);
    candidates (rows * steps, units) gets a + candidate_bias; `hidden`, `at`, `reverse`, `mask` as in `lstm_forward`.
    Scratch: state (rows, units), added (rows, 3 units).
    """
    rows, units = state.shape
    one = state.dtype.type(1)
    state[:] = 0.0
    for n in range(steps):
        t = steps - 1 - n if reverse else n
        if n > 0:
            gemm(0, 0, state, weight, 0.0, added)
        else:
            added[:] = 0.0
        for r in range(rows):
            gate, more, h, candidate = gates[r * steps + t], added[r], state[r], candidates[r * steps + t]
            more_new, reset = more[2 * units :], gate[:units]
            update, new = gate[units : 2 * units], gate[2 * units :]
            for j in range(units):
                candidate[j] = more_new[j] + candidate_bias[j]
            for j in range(2 * units):
                gate[j] += more[j]
            for j in range(2 * units):
                gate[j] = sigmoid(gate[j])
            for j in range(units):
                new[j] += reset[j] * candidate[j]
            for j in range(units):
                new[j] = tanh(new[j])
            for j in range(units):
                h[j] = (one - update[j]) * new[j] + update[j] * h[j]
            out = hidden[r * steps + t, at : at + units]
            for j in range(units):
                out[j] = h[j]
        if masked:
            keep_states(mask, hidden, state, steps, t, at, reverse)


@kernel
def gru_backward(
    gates: np.ndarray,
    weight: np.ndarray,
    hidden: np.ndarray,
    candidates: np.ndarray,
    dy: np.ndarray,
    d_gates: np.ndarray,
    d_state: np.ndarray,
    d_step: np.ndarray,
    steps: int,
    at: int,
    reverse: bool,
    every: bool,
    mask: np.ndarray,
    masked: bool,
) -> None:
    """d_gates, the gradients of the gates' input parts; `dy`, `every`, `mask` as in `lstm_backward`.

    Scratch: d_state (rows, units), d_step (rows, 3 units).
    """
    rows, units = d_state.shape
    one = dy.dtype.type(1)
    d_state[:] = 0.0
    for n in range(steps - 1, -1, -1):
        t = steps - 1 - n if reverse else n
        add_step(dy, d_state, steps, t, at, every, n == steps - 1)
        for r in range(rows):
            gate, kept, step = gates[r * steps + t], d_gates[r * steps + t], d_step[r]
            dh, candidate = d_state[r], candidates[r * steps + t]
            if masked and mask[r * steps + t] == 0:
                for j in range(3 * units):
                    step[j] = 0.0
                for j in range(3 * units):
                    kept[j] = 0.0
                continue
            reset, update, new = gate[:units], gate[units : 2 * units], gate[2 * units :]
            d_reset, d_update, d_hidden_new = step[:units], step[units : 2 * units], step[2 * units :]
            d_new = kept[2 * units :]
            for j in range(units):
                d_new[j] = dh[j] * (one - update[j]) * (one - new[j] * new[j])
            for j in range(units):
                d_reset[j] = d_new[j] * candidate[j] * reset[j] * (one - reset[j])
            for j in range(units):
                d_hidden_new[j] = d_new[j] * reset[j]
            for j in range(units):
                d_update[j] = -dh[j] * new[j] * update[j] * (one - update[j])
            if n > 0:
                before = hidden[r * steps + (t + 1 if reverse else t - 1), at : at + units]
                for j in range(units):
                    d_update[j] += dh[j] * before[j] * update[j] * (one - update[j])
            for j in range(2 * units):
                kept[j] = step[j]
            for j in range(units):
                dh[j] *= update[j]
        if n > 0:
            gemm(0, 1, d_step, weight, 1.0, d_state)


@kernel
def gru_hidden_side(gates: np.ndarray, d_gates: np.ndarray, d_candidate_bias: np.ndarray, beta: float) -> None:
    """Turn d_gates into the gradients of the gates' hidden parts: that of n times r; sum it into d_candidate_bias."""
    units = d_candidate_bias.size
    if beta == 0.0:
        d_candidate_bias[:] = 0.0
    for i in range(gates.shape[0]):
        slope, gate = d_gates[i, 2 * units :], gates[i]
        for j in range(units):
            slope[j] *= gate[j]
        for j in range(units):
            d_candidate_bias[j] += slope[j]


@kernel
def keep_states(
    mask: np.ndarray, states: np.ndarray, state: np.ndarray, steps: int, t: int, at: int, reverse: bool
) -> None:
    """Where mask is 0 at step t, make its state that of the step before (0 for the first), in `states` and `state`.

    After the step, so that the loops of the step itself are the same with and without a mask.
    """
    units = state.shape[1]
    first = steps - 1 if reverse else 0
    for r in range(state.shape[0]):
        now = r * steps + t
        if mask[now] == 0:
            before = states[now + 1 if reverse and t != first else max(now - 1, 0), at : at + units]
            out, h = states[now, at : at + units], state[r]
            for j in range(units):
                h[j] = 0.0 if t == first else before[j]
            for j in range(units):
                out[j] = h[j]


@kernel
def add_step(dy: np.ndarray, d_state: np.ndarray, steps: int, t: int, at: int, every: bool, is_last: bool) -> None:
    """d_state += dy of step t, or where `every` is false, that of the last step."""
    if every or is_last:
        for r in range(d_state.shape[0]):
            dh = d_state[r]
            slope = dy[r * steps + t if every else r, at : at + dh.size]
            for j in range(dh.size):
                dh[j] += slope[j]


@kernel
def states_before(hidden: np.ndarray, before: np.ndarray, steps: int, at: int, reverse: bool) -> None:
    """before[t] = h of the step that came before t, 0 for the first: what the weight gradient is taken with."""
    units = before.shape[1]
    for i in range(before.shape[0]):
        t = i % steps
        row = before[i]
        if t == (steps - 1 if reverse else 0):
            for j in range(units):
                row[j] = 0.0
        else:
            source = hidden[i + 1 if reverse else i - 1, at : at + units]
            for j in range(units):
                row[j] = source[j]


@kernel
def take_last(hidden: np.ndarray, y: np.ndarray, steps: int, forward_units: int) -> None:
    """y[r, j] = h[last step, j] for j < forward_units, and h[first step, j] for the direction that ends there."""
    for r in range(y.shape[0]):
        for j in range(forward_units):
            y[r, j] = hidden[r * steps + steps - 1, j]
        for j in range(forward_units, y.shape[1]):
            y[r, j] = hidden[r * steps, j]


@kernel
def last_step_backward(dy: np.ndarray, dx: np.ndarray, steps: int) -> None:
    """dx = dy at each row's last step, else 0; dy (rows, n), dx (rows * steps, n)."""
    for i in range(dx.shape[0]):
        for j in range(dx.shape[1]):
            dx[i, j] = dy[i // steps, j] if i % steps == steps - 1 else 0.0
