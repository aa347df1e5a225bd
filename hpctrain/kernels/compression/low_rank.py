"""Kernels of PowerSGD: a gradient matrix M (n, m) as P Q^T of a small rank.

Source: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
NeurIPS 2019.  P and Q are stored by columns: p (rank, n) and q (rank, m), each row of the array a column of the matrix.
M is a row-major (n, m) part of a flat buffer that begins at `start`.
"""

from __future__ import annotations

import numpy as np

from hpctrain.kernels.compression.blocks import ADD, FEEDBACK
from hpctrain.kernels.jit import kernel
from hpctrain.kernels.rng import uniform24
from hpctrain.kernels.views import view


@kernel
def project(values, residual, start, factor, mode, q, p):
    """p = M q, with M = factor residual + values, which is stored in the residual; or M = values without FEEDBACK."""
    rank, m = q.shape
    source = residual if mode & FEEDBACK else values
    for i in range(p.shape[1]):
        at = start + i * m
        row = view(source, at, (m,))
        if mode & FEEDBACK and mode & ADD:
            given = view(values, at, (m,))
            for j in range(m):
                row[j] = factor * row[j] + given[j]
        for k in range(rank):
            column = view(q, k * m, (m,))
            total = np.float32(0)
            for j in range(m):
                total += row[j] * column[j]
            p[k, i] = total


@kernel
def project_back(source, start, p, q):
    """q = M^T p."""
    rank, m = q.shape
    q[:] = 0
    for i in range(p.shape[1]):
        row = view(source, start + i * m, (m,))
        for k in range(rank):
            factor, column = p[k, i], view(q, k * m, (m,))
            for j in range(m):
                column[j] += factor * row[j]


@kernel
def orthonormalise(p):
    """Make the columns of P orthonormal, by Gram-Schmidt in float64, each column twice; a dependent one becomes zero.

    Twice is enough (Giraud, Langou, Rozloznik, "The loss of orthogonality in the Gram-Schmidt orthogonalization
    process", 2005).
    """
    rank, n = p.shape
    for k in range(rank):
        column = view(p, k * n, (n,))
        before = 0.0
        for i in range(n):
            before += np.float64(column[i]) * np.float64(column[i])
        square = before
        for _ in range(2):
            for other in range(k):
                against = view(p, other * n, (n,))
                dot = 0.0
                for i in range(n):
                    dot += np.float64(column[i]) * np.float64(against[i])
                for i in range(n):
                    column[i] -= np.float32(dot * np.float64(against[i]))
            square = 0.0
            for i in range(n):
                square += np.float64(column[i]) * np.float64(column[i])
        inverse = 0.0 if square <= 1e-12 * before or square < 1e-60 else 1.0 / np.sqrt(square)
        if not square < np.inf:
            inverse = np.nan
        for i in range(n):
            column[i] = np.float32(np.float64(column[i]) * inverse)


@kernel
def expand(p, own_q, q, start, mode, residual, out):
    """out = P Q^T of the sum over the ranks; with FEEDBACK, residual -= P Q^T of this rank's own."""
    rank, m = q.shape
    for i in range(p.shape[1]):
        at = start + i * m
        row = view(out, at, (m,))
        for j in range(m):
            row[j] = 0
        for k in range(rank):
            factor, column = p[k, i], view(q, k * m, (m,))
            for j in range(m):
                row[j] += factor * column[j]
        if mode & FEEDBACK:
            kept = view(residual, at, (m,))
            for k in range(rank):
                factor, column = p[k, i], view(own_q, k * m, (m,))
                for j in range(m):
                    kept[j] -= factor * column[j]


@kernel
def refill(q, key):
    """Fill rows of q that are zero with random numbers in [-1, 1), so that they can become something again."""
    rank, m = q.shape
    for k in range(rank):
        column = view(q, k * m, (m,))
        top = np.float32(0)
        for j in range(m):
            top += abs(column[j])
        if top == 0:
            for j in range(m):
                column[j] = np.float32(2) * uniform24(key, k * m + j) - np.float32(1)
