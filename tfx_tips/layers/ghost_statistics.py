"""Count, mean and squared deviations of ghosts, and how they merge.

Pairwise merging after Chan, Golub and LeVeque (1983), "Algorithms for computing the sample
variance", equations 2.1: squared deviations add up, plus the counts' weighted squares of the
distances between the means. No squares of the values themselves are ever taken, so nothing
cancels where the mean is large against the deviation.
"""

from typing import Any, NamedTuple

from keras import ops

from tfx_tips.layers.ghost_partition import Partition


class GhostStatistics(NamedTuple):
    """Statistics of some ghosts, each of shape `(ghosts, channels)` and at least float32.

    Attributes:
        count: How many values, broadcastable; a Python number if the same for all and static.
        center: The mean as far as the dtype can hold it; 0 where nothing counts.
        residual: What the mean is above `center`: at a mean of 1e5 float32 steps by 0.008.
        variance: The biased variance; 0 where nothing counts.
    """

    count: Any
    center: Any
    residual: Any
    variance: Any


def ghost_statistics(values: Any, partition: Partition) -> tuple[GhostStatistics, Any]:
    """Measures every ghost in two passes, the second of which corrects the first.

    Args:
        values: The arranged batch, at least float32.
        partition: Its division.

    Returns:
        The statistics, and the values' deviations from their ghost's `center`.
    """
    divisor = at_least_one(partition.counts)
    center = partition.total(partition.sample(values)) / divisor
    deviations = values - partition.spread(center)
    sampled = partition.sample(deviations)
    residual = partition.total(sampled) / divisor
    variance = partition.total(ops.square(sampled)) / divisor - ops.square(residual)
    # Rounding may leave a trace below zero where all values are equal.
    variance = ops.maximum(variance, 0)
    return GhostStatistics(partition.counts, center, residual, variance), deviations


def merge(statistics: GhostStatistics, *, axis: int = 0, between: bool = True) -> GhostStatistics:
    """Merges ghosts into one along an axis, as if their values had been measured together.

    Args:
        statistics: What to merge.
        axis: The axis that goes.
        between: Whether the distances between the ghosts' means count as deviations; without
            them the variance is the mean of the ghosts' variances, weighted by counts.
    """
    count, center, residual, variance = statistics
    if isinstance(count, float):
        return _merge_equal(statistics, axis, between)
    count = ops.broadcast_to(count, ops.shape(center))
    total = ops.sum(count, axis=axis, keepdims=True)
    weight = count / at_least_one(total)
    reference = ops.sum(weight * center, axis=axis, keepdims=True)
    # Exact where the means lie close together; ghosts without a count have no weight.
    distance = (center - reference) + residual
    shift = ops.sum(weight * distance, axis=axis, keepdims=True)
    if between:
        variance = variance + ops.square(distance - shift)
    return GhostStatistics(
        ops.squeeze(total, axis),
        ops.squeeze(reference, axis),
        ops.squeeze(shift, axis),
        ops.sum(weight * variance, axis=axis),
    )


def at_least_one(count: Any) -> Any:
    """Returns a count that can divide."""
    return max(count, 1.0) if isinstance(count, float) else ops.maximum(count, 1)


def _merge_equal(statistics: GhostStatistics, axis: int, between: bool) -> GhostStatistics:
    """Merges ghosts of one static count, with as few operations as that takes."""
    count, center, residual, variance = statistics
    ghosts = center.shape[axis]
    if ghosts == 1:
        parts = (ops.squeeze(each, axis) for each in (center, residual, variance))
        return GhostStatistics(count, *parts)
    # Any of the means will do to keep the distances exact.
    reference = ops.take(center, [0], axis=axis)
    distance = (center - reference) + residual
    shift = ops.sum(distance, axis=axis, keepdims=True) / ghosts
    if between:
        variance = variance + ops.square(distance - shift)
    return GhostStatistics(
        count * ghosts,
        ops.squeeze(reference, axis),
        ops.squeeze(shift, axis),
        ops.sum(variance, axis=axis) / ghosts,
    )
