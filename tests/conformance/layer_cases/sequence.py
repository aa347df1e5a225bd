"""Layers over sequences: embedding, positions, attention, recurrent layers."""

import numpy as np

# layer name -> (options, input shapes); more of them by themselves in unit/test_attention.py, test_sequence_layers.py
EXAMPLES = {
    "attention": ({"heads": 2}, [(3, 4)]),
    "attention causal": ({"heads": 2, "causal": True}, [(3, 4)]),
    "embedding": ({"size": 5, "units": 3}, [(2, 3)]),
    "gru": ({"units": 3}, [(4, 2)]),
    "gru both ways": ({"units": 2, "bidirectional": True}, [(3, 2)]),
    "last_step": ({}, [(2, 3, 2)]),
    "learned_positions": ({}, [(3, 5)]),
    "lstm": ({"units": 3}, [(4, 2)]),
    "lstm ends of both ways": ({"units": 2, "bidirectional": True, "return_sequences": False}, [(3, 2)]),
    "sinusoidal_positions": ({"base": 100.0}, [(3, 5)]),
}

# Layers that take whole numbers: the highest one that their example takes.
WHOLE_NUMBERS = {"embedding": 4}


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(x, p, o):
    rows, steps, _ = x.shape
    projected = x @ p["qkv_weight"] + p.get("qkv_bias", 0.0)
    q, k, v = np.moveaxis(projected.reshape(rows, steps, 3, o["heads"], -1), 2, 0).transpose(0, 1, 3, 2, 4)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if o.get("causal"):
        scores[..., ~np.tri(steps, dtype=bool)] = -np.inf
    context = (softmax(scores) @ v).swapaxes(1, 2).reshape(rows, steps, -1)
    return context @ p["out_weight"] + p.get("out_bias", 0.0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_states(x, p, ending=""):
    """h of every step, from the equations."""
    h = c = np.zeros((len(x), len(p["recurrent" + ending])))
    states = []
    for t in range(x.shape[1]):
        sums = x[:, t] @ p["weight" + ending] + h @ p["recurrent" + ending] + p["bias" + ending]
        i, f, g, o = np.split(sums, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states, 1)


def gru_states(x, p, ending=""):
    """h of every step, from the equations."""
    h = np.zeros((len(x), len(p["recurrent" + ending])))
    states = []
    for t in range(x.shape[1]):
        xr, xz, xn = np.split(x[:, t] @ p["weight" + ending] + p["bias" + ending], 3, axis=1)
        hr, hz, hn = np.split(h @ p["recurrent" + ending], 3, axis=1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        n = np.tanh(xn + r * (hn + p["candidate_bias" + ending]))
        h = (1 - z) * n + z * h
        states.append(h)
    return np.stack(states, 1)


def recurrent(states):
    def outputs(x, p, o):
        both = [states(x, p)]
        if o.get("bidirectional"):
            both.append(states(x[:, ::-1], p, "_back")[:, ::-1])
        if o.get("return_sequences", True):
            return np.concatenate(both, -1)
        return np.concatenate([h[:, -1 if place == 0 else 0] for place, h in enumerate(both)], -1)

    return outputs


def sinusoidal(x, p, o):
    _, steps, units = x.shape
    t, j = np.arange(steps)[:, None], np.arange(units)[None, :]
    angle = t / o["base"] ** ((j - j % 2) / units)
    return x + np.where(j % 2 == 0, np.sin(angle), np.cos(angle))


# layer name -> f(x (rows, *shape) float64, parameters by short name, options) in evaluation
DEFINITIONS = {
    "attention": attention,
    "attention causal": attention,
    "embedding": lambda x, p, o: p["weight"][x.astype(int)],
    "gru": recurrent(gru_states),
    "gru both ways": recurrent(gru_states),
    "last_step": lambda x, p, o: x[:, -1],
    "learned_positions": lambda x, p, o: x + p["table"],
    "lstm": recurrent(lstm_states),
    "lstm ends of both ways": recurrent(lstm_states),
    "sinusoidal_positions": sinusoidal,
}
