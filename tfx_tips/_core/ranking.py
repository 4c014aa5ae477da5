"""Which of several metric values is better: direction, ties, NaN last."""

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from tfx_tips._core.validation import require_one_of

Mode = Literal["min", "max"]
T = TypeVar("T")

# Direction by the name of a built-in Keras metric class (Keras 3.10 to 3.15). Only classes
# whose reading is beyond doubt stand here; everything else has to be told.
_LOWER_IS_BETTER = frozenset(
    """
    MeanSquaredError RootMeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError
    MeanSquaredLogarithmicError LogCoshError KLDivergence Poisson BinaryCrossentropy
    CategoricalCrossentropy SparseCategoricalCrossentropy Hinge SquaredHinge CategoricalHinge
    FalsePositives FalseNegatives
    """.split()
)
_HIGHER_IS_BETTER = frozenset(
    """
    Accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy
    TopKCategoricalAccuracy SparseTopKCategoricalAccuracy AUC Precision Recall
    PrecisionAtRecall RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity
    TruePositives TrueNegatives F1Score FBetaScore R2Score CosineSimilarity
    IoU BinaryIoU MeanIoU OneHotIoU OneHotMeanIoU PearsonCorrelation ConcordanceCorrelation
    """.split()
)


def require_mode(mode: object) -> None:
    """Raises unless `mode` is "auto", "min" or "max".

    Raises:
        ValueError: If it is not.
    """
    require_one_of("mode", mode, ("auto", "min", "max"))


def direction_of_keras_class(class_name: str) -> Mode | None:
    """Returns the direction of a built-in Keras metric class, or None if it must be told."""
    if class_name in _LOWER_IS_BETTER:
        return "min"
    if class_name in _HIGHER_IS_BETTER:
        return "max"
    return None


def quality(value: float, mode: Mode) -> tuple[int, float]:
    """Returns a sort key: smaller is better, finite before infinite, NaN last.

    An infinity is never better than a finite value, not even the one on the good side,
    since it marks an overflow and not a result.
    """
    if math.isnan(value):
        return (2, 0.0)
    signed = value if mode == "min" else -value
    return (1 if math.isinf(value) else 0, signed)


def best_first(
    items: Iterable[T], *, mode: Mode, value: Callable[[T], float], age: Callable[[T], int]
) -> list[T]:
    """Sorts items so that the best stands first and of equal ones the earlier.

    Args:
        items: What is ranked.
        mode: "min" or "max".
        value: Gives an item's metric value.
        age: Gives an item's place in time; smaller is earlier.
    """
    return sorted(items, key=lambda item: (*quality(value(item), mode), age(item)))
