"""Which examples form a ghost: with a mask or without, split or subsampled."""

from typing import Any

import numpy as np
from keras import ops

from tfx_tips.layers.ghost_partition import (
    EvenPartition,
    IndexedPartition,
    Partition,
    number_of_ghosts,
    shape_of,
)


def form_ghosts(
    inputs: Any,
    axis: int,
    mask: Any,
    *,
    virtual_batch_size: int,
    single: bool,
    subsample: bool,
) -> Partition:
    """Divides a local batch into ghosts.

    Rows that the mask leaves out entirely count for nothing here: the others fall into ghosts
    as they would without them.

    Args:
        inputs: The batch, in the dtype of the statistics.
        axis: The channels' axis, at least 1.
        mask: Which positions count for statistics, of one dimension less than `inputs`, as
            Keras' BatchNormalization takes it; or None.
        virtual_batch_size: Examples wanted in a ghost.
        single: Whether all rows belong to one ghost.
        subsample: Whether `min(virtual_batch_size, rows)` evenly strided rows make the
            statistics of all: of k among b rows, those with the indices i * b // k.
    """
    rows = shape_of(inputs)[0]
    if mask is not None:
        return _masked(inputs, axis, mask, virtual_batch_size, single, subsample)
    if subsample:
        if isinstance(rows, int):
            size = min(virtual_batch_size, rows)
            sampled = None if size == rows else np.arange(size) * rows // size
            return EvenPartition(inputs, axis, 1, sampled)
        everything = ops.ones(shape_of(inputs)[:-1], "bool")
        return _masked(inputs, axis, everything, virtual_batch_size, single, subsample)
    ghosts = 1 if single else number_of_ghosts(rows, virtual_batch_size)
    if isinstance(ghosts, int) and (ghosts == 1 or rows % ghosts == 0):
        return EvenPartition(inputs, axis, ghosts)
    if isinstance(rows, int):
        ghost_of_row = ops.convert_to_tensor(np.arange(rows) * ghosts // rows, dtype="int32")
    else:
        ghost_of_row = ops.arange(rows, dtype="int32") * ghosts // ops.maximum(rows, 1)
    return IndexedPartition(inputs, axis, ghost_of_row, ghosts)


def _masked(
    inputs: Any, axis: int, mask: Any, virtual_batch_size: int, single: bool, subsample: bool
) -> Partition:
    counted = ops.expand_dims(ops.cast(mask, "bool"), -1)
    present = ops.any(counted, axis=tuple(range(1, len(counted.shape))))
    ones = ops.cast(present, "int32")
    rank, total = ops.cumsum(ones) - 1, ops.sum(ones)
    rank = ops.maximum(rank, 0)
    if subsample:
        size = ops.maximum(ops.minimum(virtual_batch_size, total), 1)
        # The one i that can have i * total // size == rank.
        candidate = (rank * size + total - 1) // ops.maximum(total, 1)
        chosen = candidate * total // size == rank
        rows_shape = (-1, *[1] * (len(counted.shape) - 1))
        counted = ops.logical_and(counted, ops.reshape(chosen, rows_shape))
    if single or subsample:
        return IndexedPartition(inputs, axis, ops.zeros_like(ones), 1, counted)
    # What the mask leaves is known only at run time; shapes follow from all rows instead.
    bound = number_of_ghosts(shape_of(inputs)[0], virtual_batch_size)
    ghosts = number_of_ghosts(total, virtual_batch_size)
    ghost_of_row = rank * ghosts // ops.maximum(total, 1)
    return IndexedPartition(inputs, axis, ghost_of_row, bound, counted)
