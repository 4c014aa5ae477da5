"""Normalising by ghosts, with a gradient that goes through their statistics.

The gradient is written by hand (Ioffe and Szegedy, 2015, section 3): it keeps one array of
the batch's size instead of several, and sums of a group cross replicas in one reduction.
"""

from typing import Any

import keras
from keras import ops

from tfx_tips.layers.ghost_partition import Partition
from tfx_tips.layers.ghost_statistics import GhostStatistics, at_least_one, ghost_statistics
from tfx_tips.layers.replica_groups import ReplicaGroups


def normalize_ghosts(
    inputs: Any,
    gamma: Any,
    beta: Any,
    fallback: tuple[Any, Any],
    partition: Partition,
    groups: ReplicaGroups,
    *,
    epsilon: float,
) -> tuple[Any, GhostStatistics]:
    """Normalises each value by the statistics of its ghost.

    Args:
        inputs: The batch, at least float32.
        gamma: Scale, `(channels,)` in the inputs' dtype.
        beta: Offset, alike.
        fallback: Mean and variance for ghosts in which the mask leaves nothing.
        partition: The batch's division.
        groups: What replicas have in common. If a ghost spans several, every replica makes
            one reduction here and one in the gradient.
        epsilon: Added to the variance.

    Returns:
        The outputs, and the statistics of all ghosts known here: this replica's, or every
        group's if a ghost spans replicas.
    """
    spans_replicas = groups.size > 1

    def forward(inputs: Any, gamma: Any, beta: Any) -> tuple[Any, Any]:
        local, deviations = ghost_statistics(partition.arrange(inputs), partition)
        known, own, shift = local, local, local.residual
        if spans_replicas:
            known, own = groups.merge_across_replicas(local)
            # The mean's distance from what was already subtracted.
            shift = (own.center - local.center) + own.residual
        variance = own.variance
        if partition.may_be_empty:
            empty = own.count == 0
            shift = ops.where(empty, fallback[0] - local.center, shift)
            variance = ops.where(empty, fallback[1], variance)
        inverse = ops.rsqrt(variance + epsilon)
        scale = gamma * inverse
        offset = beta - shift * scale
        outputs = deviations * partition.spread(scale) + partition.spread(offset)

        def gradient(*upstream: Any) -> tuple[Any, Any, Any]:
            # TensorFlow passes one gradient for each output, JAX one tuple of them.
            to_outputs = partition.arrange(keras.tree.flatten(upstream)[0])
            sums = partition.total(to_outputs)
            products = (partition.total(to_outputs * deviations) - shift * sums) * inverse
            to_beta, to_gamma = ops.sum(sums, axis=0), ops.sum(products, axis=0)
            if spans_replicas:
                sums, products = groups.sum_of_group((sums, products))
            count = at_least_one(own.count)
            slope = products * inverse / count
            constant = sums / count - slope * shift
            through = deviations * partition.spread(slope) + partition.spread(constant)
            to_inputs = (to_outputs - partition.where_sampled(through)) * partition.spread(scale)
            return partition.restore(to_inputs), to_gamma, to_beta

        statistics = known if spans_replicas else known[1:]
        return (partition.restore(outputs), *statistics), gradient

    outputs, *known = ops.custom_gradient(forward)(inputs, gamma, beta)
    # A count that is the same for all stays the number that it is.
    return outputs, GhostStatistics(*([] if spans_replicas else [partition.counts]), *known)
