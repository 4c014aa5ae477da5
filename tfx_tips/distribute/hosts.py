"""Which host this process is, and who writes.

A `tf.distribute.Strategy` knows best and may be passed; otherwise the cluster that the
environment variable `TF_CONFIG` describes counts; without one there is a single host.
Nothing here imports TensorFlow or waits for another host.
"""

import json
import os
from typing import Any

# Task types of TF_CONFIG that train, in the order in which they are counted.
_TRAINING_TASKS = ("chief", "master", "worker")


def host_index(strategy: Any = None) -> int:
    """Returns this host's number among those that train, counted from 0.

    Args:
        strategy: A `tf.distribute.Strategy`, or None to read `TF_CONFIG`.

    Raises:
        ValueError: If `TF_CONFIG` is not valid, or names a task that does not exist.
    """
    return _place(strategy)[0]


def num_hosts(strategy: Any = None) -> int:
    """Returns how many hosts train.

    Args:
        strategy: A `tf.distribute.Strategy`, or None to read `TF_CONFIG`.

    Raises:
        ValueError: If `TF_CONFIG` is not valid.
    """
    return _place(strategy)[1]


def is_chief(strategy: Any = None) -> bool:
    """Returns whether this host is the one that writes files.

    Args:
        strategy: A `tf.distribute.Strategy`, or None to read `TF_CONFIG`.

    Raises:
        ValueError: If `TF_CONFIG` is not valid.
    """
    return host_index(strategy) == 0


def _place(strategy: Any) -> tuple[int, int]:
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is not None and resolver.task_type is not None:
        cluster = resolver.cluster_spec().as_dict()
        if cluster:
            return _place_in(cluster, resolver.task_type, resolver.task_id)
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return 0, 1
    try:
        config = json.loads(text)
        cluster = {kind: _addresses(value) for kind, value in config.get("cluster", {}).items()}
        task = config.get("task", {})
        kind, index = task.get("type", "worker"), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            "The environment variable TF_CONFIG must be a JSON object with `cluster` (lists of "
            "hosts by their kind) and `task` (`type` and `index`). "
            f"Received: TF_CONFIG={text!r}. Unset it for a single host."
        ) from error
    if not cluster:
        return 0, 1
    return _place_in(cluster, kind, index)


def _addresses(value: Any) -> list[Any]:
    if not isinstance(value, (list, dict)):
        raise TypeError(f"addresses must be a list or an object, not {value!r}")
    return list(value)


def _place_in(cluster: dict[str, Any], kind: str, index: int) -> tuple[int, int]:
    tasks = [
        (name, number) for name in _TRAINING_TASKS for number in range(len(cluster.get(name, ())))
    ]
    if kind == "evaluator":
        # An evaluator belongs to no training cluster: it is alone, and the chief of itself.
        return 0, 1
    if (kind, index) not in tasks:
        raise ValueError(
            "The task in TF_CONFIG must be one of the cluster's chief or worker tasks. "
            f"Received: type={kind!r}, index={index} in a cluster with {tasks}. "
            "Correct the task's type or index."
        )
    return tasks.index((kind, index)), len(tasks)
