"""Which replicas form one ghost, and what they tell each other."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfx_tips.layers.ghost_statistics import GhostStatistics, merge


class ReplicaGroups:
    """Groups of neighbouring replicas, each of which forms one ghost if larger than 1.

    Args:
        replicas: How many replicas run in step.
        size: Replicas in a group, a divisor of their number.
    """

    def __init__(self, replicas: int = 1, size: int = 1):
        self.replicas, self.size = replicas, size

    def merge_across_replicas(
        self, local: GhostStatistics
    ) -> tuple[GhostStatistics, GhostStatistics]:
        """Returns every group's statistics, and those of this replica's group: one reduction.

        Args:
            local: Of one ghost, `(1, channels)`.
        """
        from tfx_tips.distribute import reduce

        count = ops.broadcast_to(ops.cast(local.count, local.center.dtype), local.center.shape)
        parts = reduce.gather_from_replicas(ops.concatenate([count, *local[1:]], axis=0))
        parts = ops.reshape(parts, (-1, self.size, *parts.shape[1:]))
        groups = merge(GhostStatistics(*ops.unstack(parts, axis=2)), axis=1)
        own = reduce.group_index(self.size)
        return groups, GhostStatistics(*(ops.take(each, own, axis=0)[None] for each in groups))

    def sum_of_group(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns each array's sum over this replica's group: one reduction for all.

        Args:
            values: Arrays of shape `(1, channels)`.
        """
        from tfx_tips.distribute import reduce

        summed = reduce.sum_over_group(ops.concatenate(values, axis=0), self.size)
        return tuple(each[None] for each in ops.unstack(summed, axis=0))

    def merge_everything(self, known: GhostStatistics, *, between: bool) -> GhostStatistics:
        """Merges all ghosts of all replicas into one: one reduction if none was made before.

        Args:
            known: What `normalize_ghosts` returned.
            between: Whether distances between ghosts count as deviations.

        Returns:
            Statistics of shape `(channels,)`, bitwise alike on all replicas.
        """
        merged = merge(known, between=between)
        if self.replicas == 1 or self.size > 1:
            return merged
        from tfx_tips.distribute import reduce

        count = ops.broadcast_to(ops.cast(merged.count, merged.center.dtype), merged.center.shape)
        parts = reduce.gather_from_replicas(ops.stack([count, *merged[1:]]))
        return merge(GhostStatistics(*ops.unstack(parts, axis=1)), between=between)


def find_groups(
    replicas_per_group: int | str,
    local_batch: int | None,
    virtual_batch_size: int,
    *,
    warn: Callable[[str], None],
) -> ReplicaGroups:
    """Finds the groups for one call of a layer in training.

    Args:
        replicas_per_group: An integer, "all" or "auto".
        local_batch: This replica's number of examples, None if only known at run time.
        virtual_batch_size: Examples wanted in a ghost.
        warn: Called with a message where "auto" has to guess.

    Raises:
        ValueError: If the groups do not divide the replicas, or groups are asked for on a
            backend other than TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        if replicas_per_group in ("auto", 1):
            return ReplicaGroups()
        raise ValueError(
            "`replicas_per_group` other than 1 or 'auto' needs Keras' TensorFlow backend, whose "
            f"replicas it reduces over. Received: replicas_per_group={replicas_per_group!r} with "
            f"backend={keras.backend.backend()!r}. Pass `replicas_per_group=1`."
        )
    from tfx_tips.distribute import reduce

    replicas = reduce.num_replicas()
    if replicas_per_group == "all":
        return ReplicaGroups(replicas, replicas)
    if replicas_per_group == "auto":
        if replicas == 1:
            return ReplicaGroups()
        # Replicas may hold different numbers, but must not decide differently.
        batch = reduce.largest_over_local_replicas(-1 if local_batch is None else local_batch)
        if batch < 0:
            warn(
                f"The batch of a replica is known only at run time, so ghosts stay inside one of "
                f"the {replicas} replicas: each holds about {virtual_batch_size} examples, or a "
                "replica's whole batch where that is smaller. Set `replicas_per_group` to the "
                "number of replicas that form one ghost, or to 1 if this is what you want."
            )
            return ReplicaGroups(replicas, 1)
        return ReplicaGroups(replicas, smallest_group(replicas, batch, virtual_batch_size))
    if replicas % int(replicas_per_group):
        raise ValueError(
            "`replicas_per_group` must divide the number of replicas. "
            f"Received: replicas_per_group={replicas_per_group} with {replicas} replicas. "
            "Pass one of its divisors, or 'all'."
        )
    return ReplicaGroups(replicas, int(replicas_per_group))


def smallest_group(replicas: int, local_batch: int, virtual_batch_size: int) -> int:
    """Returns the smallest divisor of `replicas` whose replicas hold a whole ghost, or all.

    Args:
        replicas: Their number.
        local_batch: Examples on each.
        virtual_batch_size: Examples wanted in a ghost.
    """
    for size in range(1, replicas):
        if replicas % size == 0 and size * local_batch >= virtual_batch_size:
            return size
    return replicas
