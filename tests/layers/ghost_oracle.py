"""Ghost batch normalization by loops over examples, in float64, for tests to compare with.

Nothing is shared with the package: ghosts are lists of rows, gradients come from complex steps.
"""

import math

import numpy as np


def ghosts_of(rows, v):
    """Returns the rows of each ghost, as lists of positions in `rows`."""
    b = len(rows)
    n = max(1, min(b // 2, math.floor(b / v + 0.5)))
    members = [[] for _ in range(n)]
    for position in range(b):
        members[math.floor(position * n / b + 1e-12)].append(rows[position])
    return members


def kept(mask, rows):
    return [r for r in range(rows) if mask is None or np.any(mask[r])]


def normalize(parts, v, *, p=1, subsample=False, gamma=1, beta=0, epsilon=1e-3, masks=None):
    """Normalizes the batches of several replicas, channels last.

    Returns the outputs and, for each ghost, the values that made its statistics, (values, C).
    Rows that a mask leaves out are normalized by a ghost that is nobody's business: NaN.
    """
    masks = masks or [None] * len(parts)
    outputs = [np.full_like(part, np.nan) for part in parts]
    measured = []
    for first in range(0, len(parts), p):
        group = range(first, first + p)
        rows = {r: kept(masks[r], len(parts[r])) for r in group}
        if p == 1 and not subsample:
            ghosts = [{first: members} for members in ghosts_of(rows[first], v)]
            sampled = ghosts
        else:
            ghosts = [rows]
            sampled = [{r: sample(rows[r], v) if subsample else rows[r] for r in group}]
        for ghost, source in zip(ghosts, sampled, strict=True):
            values = np.concatenate([chosen(parts[r], masks[r], source[r]) for r in source], axis=0)
            measured.append(values)
            if not len(values):
                continue
            mean = values.mean(axis=0)
            variance = ((values - mean) ** 2).mean(axis=0)
            for r, members in ghost.items():
                outputs[r][members] = (parts[r][members] - mean) / np.sqrt(
                    variance + epsilon
                ) * gamma + beta
    return outputs, measured


def sample(rows, v):
    size = min(v, len(rows))
    return [rows[i * len(rows) // size] for i in range(size)]


def chosen(part, mask, rows):
    values = part[rows]
    if mask is None:
        return values.reshape(-1, part.shape[-1])
    return values[mask[rows].astype(bool)].reshape(-1, part.shape[-1])


def batch_statistics(measured, moving_variance="pooled"):
    """Returns what moving statistics move towards: mean and variance of the whole step."""
    everything = np.concatenate(measured)
    if moving_variance == "pooled":
        return everything.mean(axis=0), everything.var(axis=0)
    counts = np.array([len(values) for values in measured], "float64")
    variances = np.array([values.var(axis=0) for values in measured if len(values)])
    counts = counts[counts > 0]
    return everything.mean(axis=0), (counts[:, None] * variances).sum(axis=0) / counts.sum()


def gradients(parts, upstream, v, *, gamma, beta, **options):
    """Returns d sum(upstream * outputs) for inputs, gamma and beta, by complex steps."""
    step = 1e-30

    def loss(parts, gamma, beta):
        outputs, _ = normalize(parts, v, gamma=gamma, beta=beta, **options)
        return sum(np.nansum(u * o) for u, o in zip(upstream, outputs, strict=True))

    parts = [part.astype(complex) for part in parts]
    of_inputs = [np.zeros(part.shape) for part in parts]
    for part, target in zip(parts, of_inputs, strict=True):
        for place in np.ndindex(part.shape):
            part[place] += 1j * step
            target[place] = loss(parts, gamma, beta).imag / step
            part[place] = part[place].real
    of_parameters = []
    for which in range(2):
        found = np.zeros(len(gamma))
        for channel in range(len(gamma)):
            moved = [np.array(gamma, complex), np.array(beta, complex)]
            moved[which][channel] += 1j * step
            found[channel] = loss(parts, *moved).imag / step
        of_parameters.append(found)
    return of_inputs, *of_parameters
