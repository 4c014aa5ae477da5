"""Sums over groups of replicas, inside a replica's function.

`tf.distribute` reduces over all replicas only. Sums over a subgroup come from it all the
same: each replica places its part in a slot of its own or of its group, zeros elsewhere, and
reads the slots it needs after the reduction. Every replica must come past each call, outside
`tf.cond` and `tf.while_loop`. Gradients go through.
"""

from typing import Any

import tensorflow as tf


def num_replicas() -> int:
    """Returns how many replicas run the code that calls this; 1 outside replica functions."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def gather_from_replicas(value: Any) -> Any:
    """Returns every replica's value, alike on all of them: one reduction.

    Args:
        value: A floating-point tensor of one shape on all replicas.

    Returns:
        A tensor of shape `(replicas, *value.shape)`.
    """
    context = tf.distribute.get_replica_context()
    return _reduce_slots(value, context.replica_id_in_sync_group, num_replicas())


def sum_over_group(value: Any, size: int) -> Any:
    """Returns the sum over this replica's group of `size` neighbouring replicas: one reduction.

    Args:
        value: A floating-point tensor of one shape on all replicas.
        size: Replicas in a group, a divisor of their number.
    """
    group = group_index(size)
    return tf.gather(_reduce_slots(value, group, num_replicas() // size), group)


def group_index(size: int) -> Any:
    """Returns the number of this replica's group of `size` neighbouring replicas."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group // size


def largest_over_local_replicas(value: int) -> int:
    """Returns the largest of a Python integer over the replicas of this host, while tracing.

    Where replicas cannot meet (a `tf.function` of the caller's inside the replica's function)
    the value itself comes back.
    """
    context = tf.distribute.get_replica_context()
    try:
        return context.merge_call(
            lambda strategy, each: max(strategy.experimental_local_results(each)), args=(value,)
        )
    except RuntimeError:
        return value


def _reduce_slots(value: Any, slot: Any, slots: int) -> Any:
    # Chosen, not multiplied by zero: an infinity stays in its slot.
    own = tf.reshape(tf.range(slots) == slot, (slots, *[1] * len(value.shape)))
    placed = tf.where(own, value[tf.newaxis], tf.zeros_like(value)[tf.newaxis])
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed)
