"""How the examples of a batch fall into ghosts, and sums over them.

Hoffer et al. (2017) normalise parts of a large batch by statistics of their own. Here a
local batch of b examples falls into n balanced, contiguous parts: example i belongs to
ghost i * n // b, so that sizes differ by one at most and no ghost is a single example.
"""

from typing import Any, Protocol

import numpy as np
from keras import ops


def number_of_ghosts(batch: Any, virtual_batch_size: int) -> Any:
    """Returns how many ghosts a batch makes: the nearest to `virtual_batch_size` each.

    For at least `virtual_batch_size` examples, and that at least 2, each ghost holds from
    floor(0.75 v) to ceil(1.5 v) of them.

    Args:
        batch: Number of examples, an integer or an integer tensor.
        virtual_batch_size: The size v that is wanted.
    """
    wanted = (2 * batch + virtual_batch_size) // (2 * virtual_batch_size)
    if isinstance(batch, int):
        return max(1, min(batch // 2, wanted))
    return ops.maximum(1, ops.minimum(batch // 2, wanted))


class Partition(Protocol):
    """A division of one batch into ghosts.

    `counts` holds how many values per channel make each ghost's statistics: a Python float if
    that is static and the same for all, else broadcastable to `(ghosts, channels)` in the
    batch's dtype. `may_be_empty` tells whether some can be 0 while there are rows.
    """

    counts: Any
    may_be_empty: bool

    def arrange(self, values: Any) -> Any:
        """Reshapes the batch to the layout of `total` and `spread`."""

    def restore(self, values: Any) -> Any:
        """Undoes `arrange`."""

    def total(self, values: Any) -> Any:
        """Sums arranged values to `(ghosts, channels)`."""

    def sample(self, values: Any) -> Any:
        """Returns what counts for statistics, ready for `total`."""

    def spread(self, statistics: Any) -> Any:
        """Makes `(ghosts, channels)` broadcastable to arranged values."""

    def where_sampled(self, values: Any) -> Any:
        """Returns arranged values, zero where a value does not count for statistics."""


class EvenPartition:
    """Ghosts of equal size without a mask: plain reductions and reshapes.

    Vectors are arranged as `(ghosts, rows, channels)`. What has inner axes stays as it is: it is
    summed over these first, which XLA on CPUs does several times faster than over a ghost's rows
    as well.

    Args:
        inputs: The batch; its first dimension is a multiple of `ghosts`.
        axis: The channels' axis, at least 1.
        ghosts: How many; with more than 1 the first dimension is static.
        sampled: Rows that make the statistics, a static array of indices; None for all.
    """

    may_be_empty = False

    def __init__(self, inputs: Any, axis: int, ghosts: int, sampled: np.ndarray | None = None):
        self._shape = shape_of(inputs)
        self._ghosts, self._sampled = ghosts, sampled
        self._rows = self._shape[0] // ghosts
        self._vectors = len(self._shape) == 2
        inner = [d for d in range(1, len(self._shape)) if d != axis]
        self._inner = (1,) if self._vectors else tuple(inner)
        self._spread_shape = [1 if d in inner else self._shape[d] for d in range(len(self._shape))]
        if ghosts == 1:
            self._spread_shape[0] = 1
        rows = self._rows if sampled is None else len(sampled)
        self.counts = _product([rows, *(self._shape[d] for d in inner)], inputs.dtype)

    def arrange(self, values: Any) -> Any:
        """Reshapes vectors to `(ghosts, rows, channels)`."""
        if not self._vectors:
            return values
        return ops.reshape(values, (self._ghosts, self._rows, self._shape[1]))

    def restore(self, values: Any) -> Any:
        """Undoes `arrange`."""
        return ops.reshape(values, self._shape) if self._vectors else values

    def total(self, values: Any) -> Any:
        """Sums over inner axes, then over a ghost's rows."""
        sums = ops.sum(values, axis=self._inner)
        if self._vectors:
            return sums
        if self._ghosts == 1:
            return ops.sum(sums, axis=0, keepdims=True)
        # With more than one ghost the number of rows is static. Not a sum over an inner axis:
        # XLA on CPUs would merge it with the one above, and take twice as long.
        ghost_of_row = np.arange(sums.shape[0], dtype="int32") // (sums.shape[0] // self._ghosts)
        return ops.segment_sum(sums, ghost_of_row, num_segments=self._ghosts)

    def sample(self, values: Any) -> Any:
        """Takes the sampled rows."""
        if self._sampled is None:
            return values
        return ops.take(values, self._sampled, axis=1 if self._vectors else 0)

    def spread(self, statistics: Any) -> Any:
        """Repeats what a ghost has for each of its rows."""
        statistics = statistics[:, None]
        if self._vectors:
            return statistics
        if self._ghosts > 1:
            shape = (self._ghosts, self._rows, statistics.shape[-1])
            statistics = ops.broadcast_to(statistics, shape)
        return ops.reshape(statistics, self._spread_shape)

    def where_sampled(self, values: Any) -> Any:
        """Returns zero outside the sampled rows."""
        if self._sampled is None:
            return values
        chosen = np.zeros((self._shape[0], *[1] * (len(self._shape) - 1)), "bool")
        chosen[self._sampled] = True
        return ops.where(chosen[None] if self._vectors else chosen, values, ops.zeros_like(values))


class IndexedPartition:
    """Ghosts of any size, with a mask or without: sums of rows, then of the rows' ghosts.

    Args:
        inputs: The batch, in the dtype of the statistics.
        axis: The channels' axis, at least 1.
        ghost_of_row: The ghost of each row, `(rows,)` int32.
        ghosts: An upper bound of their number; those without rows stay empty.
        counted: Which values count for statistics, boolean, broadcastable to the batch; None
            for all of them.
    """

    def __init__(self, inputs: Any, axis: int, ghost_of_row: Any, ghosts: Any, counted: Any = None):
        self._ghost_of_row, self._ghosts, self._counted = ghost_of_row, ghosts, counted
        shape = shape_of(inputs)
        self._axes = tuple(d for d in range(1, len(shape)) if d != axis)
        self._spread_shape = [-1 if d in (0, axis) else 1 for d in range(len(shape))]
        self._spread_shape[axis] = shape[axis]
        self.may_be_empty = counted is not None
        if counted is None:
            rows = ops.ones_like(ghost_of_row, dtype=inputs.dtype)
            inner = _product([shape[d] for d in self._axes], inputs.dtype)
            self.counts = self._segments(rows)[:, None] * inner
        else:
            ones = ops.cast(ops.broadcast_to(counted, shape), inputs.dtype)
            self.counts = self.total(ones)

    def arrange(self, values: Any) -> Any:
        """Leaves the batch as it is."""
        return values

    def restore(self, values: Any) -> Any:
        """Leaves the batch as it is."""
        return values

    def total(self, values: Any) -> Any:
        """Sums rows, then the rows of each ghost."""
        return self._segments(ops.sum(values, axis=self._axes) if self._axes else values)

    def sample(self, values: Any) -> Any:
        """Returns zero where a value does not count."""
        return self.where_sampled(values)

    def spread(self, statistics: Any) -> Any:
        """Gathers for each row what its ghost has."""
        return ops.reshape(ops.take(statistics, self._ghost_of_row, axis=0), self._spread_shape)

    def where_sampled(self, values: Any) -> Any:
        """Returns zero where a value does not count."""
        if self._counted is None:
            return values
        return ops.where(self._counted, values, ops.zeros_like(values))

    def _segments(self, rows: Any) -> Any:
        return ops.segment_sum(rows, self._ghost_of_row, num_segments=self._ghosts)


def shape_of(values: Any) -> tuple[Any, ...]:
    """Returns a shape of integers, with tensors where a size is known only at run time.

    Unlike `ops.shape` it adds nothing to TensorFlow's graph where all sizes are static.
    """
    static = tuple(values.shape)
    return ops.shape(values) if None in static else static


def _product(sizes: list[Any], dtype: Any) -> Any:
    """Multiplies dimensions: a Python float if they are static, else a scalar of the dtype."""
    if all(isinstance(size, int) for size in sizes):
        return float(np.prod(sizes, dtype="float64"))
    return ops.prod(ops.stack([ops.cast(size, dtype) for size in sizes]))
