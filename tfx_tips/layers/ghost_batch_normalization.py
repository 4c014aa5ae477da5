"""Batch normalization whose statistics keep their size when batches or replicas grow."""

import warnings
from typing import Any

import keras
from keras import ops

from tfx_tips._core.validation import require_one_of, require_positive_int
from tfx_tips.layers.ghost_formation import form_ghosts
from tfx_tips.layers.ghost_normalization import normalize_ghosts
from tfx_tips.layers.ghost_statistics import GhostStatistics
from tfx_tips.layers.replica_groups import find_groups

_MOVING = ("moving_mean", "moving_variance")
# What keras.layers.BatchNormalization of some versions adds to its configuration.
_NOT_OURS = ("synchronized", "renorm", "renorm_clipping", "renorm_momentum")


@keras.saving.register_keras_serializable(package="tfx_tips")
class GhostBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization by statistics of about `virtual_batch_size` examples.

    Do not use it where you can do without batch statistics: `keras.layers.LayerNormalization`
    (or GroupNormalization for images) behaves alike in training and inference, at any batch
    size and on any number of replicas, and usually replaces batch normalization in new models.
    This layer is for architectures that need batch normalization and for large batches or
    several replicas, where the noise of small batches is wanted back (Hoffer et al., 2017) or
    batch sizes are compared on equal terms.

    In training a local batch of b examples falls into
    `n = max(1, min(b // 2, (2 * b + v) // (2 * v)))` balanced, contiguous ghosts, v being
    `virtual_batch_size`: example i belongs to ghost `i * n // b`. Any b works, no ghost is a
    single example, and for b at least v each holds from `floor(0.75 * v)` to `ceil(1.5 * v)`.
    Inference knows no ghosts: it is Keras' own, by moving statistics, for any batch size.

    Variables, their order and names are those of `keras.layers.BatchNormalization`, so weights
    move between the two. Statistics are float32 at least and stay right where the mean is large
    against the deviation; moving statistics are float32 even in a float16 policy.

    Under `tf.distribute` every replica must call the layer in every step, outside `tf.cond` and
    `tf.while_loop`; replicas may hold different numbers of examples or none. A step adds one
    reduction over all replicas, two where a ghost spans replicas, of 4 floats a channel and
    replica. Moving statistics follow all ghosts of all replicas and are bitwise alike on each.
    On the host nothing is read. One array of the batch's size is kept for the gradient.

    Args:
        virtual_batch_size: Examples behind one set of statistics, at least 1. With 1, which
            needs inputs with more than one position an example, ghosts are pairs.
        replicas_per_group: Integer p: p neighbouring replicas, whose number p must divide, form
            exactly one ghost, however large; with 1 ghosts stay inside a replica. "all": one
            ghost over all replicas. "auto": the smallest divisor of the number of replicas whose
            replicas hold `virtual_batch_size` examples together (all of them if none does),
            where a replica's batch is static; else 1, with a warning.
        statistics: "split": every example is normalised by its own ghost. "subsample":
            `min(v, b)` evenly strided examples of each replica (indices `i * b // min(v, b)`)
            form one ghost, which normalises the whole local batch; with groups, of all their
            replicas.
        moving_variance: "pooled": the moving variance follows the variance of the whole batch,
            which is the same for every virtual batch size and number of replicas, and right for
            inference, where no ghosts are subtracted. It is larger than the ghosts' mean
            variance by the spread of their means. "ghost": it follows the mean of the ghosts'
            variances, weighted by counts, as in most other implementations.
        axis: The channels' axis; not the first, which holds the examples.
        momentum: Momentum of the moving statistics, per step.
        epsilon: Added to variances.
        center: Whether to add `beta`.
        scale: Whether to multiply by `gamma`.
        beta_initializer: Initializer of `beta`.
        gamma_initializer: Initializer of `gamma`.
        moving_mean_initializer: Initializer of the moving mean.
        moving_variance_initializer: Initializer of the moving variance.
        beta_regularizer: Regularizer of `beta`.
        gamma_regularizer: Regularizer of `gamma`.
        beta_constraint: Constraint of `beta`.
        gamma_constraint: Constraint of `gamma`.
        **kwargs: `name`, `dtype`, `trainable` (False means inference mode, as in Keras).

    Call arguments:
        inputs: Floating-point tensor of shape `(batch, ...)`, of rank 2 or more.
        training: Whether to normalise by ghosts and to update the moving statistics.
        mask: Boolean tensor of shape `inputs.shape[:-1]`: what counts for statistics. Rows left
            out entirely do not count for forming ghosts either. Where nothing is left, the
            moving statistics normalise and stay what they are.

    Raises:
        ValueError: If an argument is not as described, if `renorm` or `synchronized` is asked
            for, or, in a training call, if `replicas_per_group` does not divide the replicas or
            is asked for on a backend other than TensorFlow.

    Example:
        layer = GhostBatchNormalization(64)
        layer = GhostBatchNormalization(64, replicas_per_group=4)  # 16 examples on each replica

    Reference:
        Ioffe and Szegedy (2015), arXiv:1502.03167. Hoffer, Hubara and Soudry (2017),
        arXiv:1705.08741, algorithm 1. Chan, Golub and LeVeque (1983), equations 2.1.
    """

    def __init__(
        self,
        virtual_batch_size: int = 64,
        *,
        replicas_per_group: int | str = "auto",
        statistics: str = "split",
        moving_variance: str = "pooled",
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        **kwargs: Any,
    ):
        _refuse_foreign_arguments(kwargs)
        require_positive_int("virtual_batch_size", virtual_batch_size, "Pass for example 64.")
        if replicas_per_group not in ("auto", "all"):
            require_positive_int(
                "replicas_per_group", replicas_per_group, "Or pass 'auto', or 'all'."
            )
        require_one_of("statistics", statistics, ("split", "subsample"))
        require_one_of("moving_variance", moving_variance, ("pooled", "ghost"))
        super().__init__(
            axis=axis, momentum=momentum, epsilon=epsilon, center=center, scale=scale, **kwargs
        )
        self.virtual_batch_size = virtual_batch_size
        self.replicas_per_group = replicas_per_group
        self.statistics = statistics
        # Not `moving_variance`, which is the variable's name.
        self.moving_variance_of = moving_variance
        self._warned = False

    def build(self, input_shape: Any) -> None:
        """Makes the four variables, and refuses ghosts of a single value a channel."""
        rank = len(input_shape)
        if rank < 2 or self.axis % rank == 0:
            raise ValueError(
                "Inputs must have the examples first and the channels on another axis. "
                f"Received: input_shape={tuple(input_shape)} with axis={self.axis}. "
                "Pass another `axis`, or inputs of rank 2 or more."
            )
        inner = [size for d, size in enumerate(input_shape) if d not in (0, self.axis % rank)]
        if self.virtual_batch_size == 1 and all(size == 1 for size in inner):
            raise ValueError(
                "A ghost must hold more than one value for each channel. "
                f"Received: virtual_batch_size=1 for input_shape={tuple(input_shape)}. "
                "Pass `virtual_batch_size=2` or more, or use LayerNormalization."
            )
        super().build(input_shape)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a variable; moving statistics are never below float32."""
        if kwargs.get("name") in _MOVING:
            kwargs["dtype"] = keras.backend.result_type(self.variable_dtype, "float32")
        return super().add_weight(*args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalises `inputs`; see the class."""
        if not (training and self.trainable):
            return super().call(inputs, training=False, mask=mask)
        if mask is not None and len(mask.shape) != len(inputs.shape) - 1:
            raise ValueError(
                "`mask` must have one dimension less than the inputs. "
                f"Received: mask.shape={tuple(mask.shape)}, inputs.shape={tuple(inputs.shape)}. "
                "Pass one of the inputs' shape without the last dimension."
            )
        groups = find_groups(
            self.replicas_per_group,
            inputs.shape[0],
            self.virtual_batch_size,
            warn=self._warn_once,
        )
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        inputs = ops.cast(inputs, dtype)
        partition = form_ghosts(
            inputs,
            self.axis % len(inputs.shape),
            mask,
            virtual_batch_size=self.virtual_batch_size,
            single=groups.size > 1,
            subsample=self.statistics == "subsample",
        )
        moving = [ops.cast(v, dtype) for v in (self.moving_mean, self.moving_variance)]
        channels = (inputs.shape[self.axis],)
        outputs, known = normalize_ghosts(
            inputs,
            ops.cast(self.gamma, dtype) if self.scale else ops.ones(channels, dtype),
            ops.cast(self.beta, dtype) if self.center else ops.zeros(channels, dtype),
            (moving[0], moving[1]),
            partition,
            groups,
            epsilon=self.epsilon,
        )
        between = self.moving_variance_of == "pooled"
        self._update(moving, groups.merge_everything(known, between=between))
        return ops.cast(outputs, self.compute_dtype)

    def _update(self, moving: list[Any], seen: GhostStatistics) -> None:
        """Moves the moving statistics on, unless no replica had an example."""
        if isinstance(seen.count, float) and not seen.count:
            return
        variables = (self.moving_mean, self.moving_variance)
        values = (seen.center + seen.residual, seen.variance)
        for variable, old, value in zip(variables, moving, values, strict=True):
            new = old * self.momentum + value * (1.0 - self.momentum)
            if not isinstance(seen.count, float):
                new = ops.where(seen.count > 0, new, old)
            variable.assign(new)

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, stacklevel=2)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make this layer again."""
        config = {k: v for k, v in super().get_config().items() if k not in _NOT_OURS}
        return config | {
            "virtual_batch_size": self.virtual_batch_size,
            "replicas_per_group": self.replicas_per_group,
            "statistics": self.statistics,
            "moving_variance": self.moving_variance_of,
        }


def _refuse_foreign_arguments(kwargs: dict[str, Any]) -> None:
    """Raises for what Keras' layer has and this one answers otherwise; drops `renorm=False`."""
    if kwargs.pop("renorm", False):
        raise ValueError(
            "GhostBatchNormalization has no batch renormalization. Received: renorm=True. "
            "Leave it out; for statistics over more examples than a replica holds, set "
            "`replicas_per_group`."
        )
    if "synchronized" in kwargs:
        raise ValueError(
            "GhostBatchNormalization has no argument `synchronized`. "
            f"Received: synchronized={kwargs['synchronized']!r}. Set `replicas_per_group`: 'all' "
            "for one ghost over all replicas, 1 for ghosts inside each."
        )
