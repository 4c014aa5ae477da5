"""One seed, and what follows from it: the same on all hosts, or one for each.

Initial weights and the order of the data must be drawn alike on every host (hosts that
shuffle differently before they take their share read some examples twice and others
never). What augments data must differ, or hosts make the same variants.
"""

import hashlib
from dataclasses import dataclass

from tfx_tips._core.validation import require_positive_int
from tfx_tips.distribute import hosts


@dataclass(frozen=True)
class Seeds:
    """Seeds of one host, each an integer from 0 to 2**31 - 1, stable across runs and versions.

    Attributes:
        initialization: For weights; shared by all hosts.
        data: For file order and shuffling before the hosts' shares are taken; shared.
        augmentation: For random changes of examples; one for each host.
        host_index: The host that `augmentation` belongs to.
    """

    initialization: int
    data: int
    augmentation: int
    host_index: int


def seeds(seed: int, *, host_index: int | None = None) -> Seeds:
    """Derives a host's seeds from the run's one seed.

    Args:
        seed: The run's seed, an integer of at least 0.
        host_index: The host to derive for; this one by default, as `host_index()` tells.

    Raises:
        ValueError: If an argument is not an integer of at least 0.

    Example:
        run = seeds(7)
        keras.utils.set_random_seed(run.initialization)
        dataset = dataset.shuffle(1000, seed=run.data)
    """
    require_positive_int("seed", seed, "Pass for example `seed=0`.", minimum=0)
    index = hosts.host_index() if host_index is None else host_index
    require_positive_int("host_index", index, "Hosts are counted from 0.", minimum=0)
    return Seeds(
        initialization=_derive(seed, "initialization"),
        data=_derive(seed, "data"),
        augmentation=_derive(seed, f"augmentation/{index}"),
        host_index=index,
    )


def _derive(seed: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
