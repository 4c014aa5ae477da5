"""Hosts, replicas and seeds."""

from tfx_tips.distribute.hosts import host_index, is_chief, num_hosts
from tfx_tips.distribute.seeds import Seeds, seeds

__all__ = ["Seeds", "host_index", "is_chief", "num_hosts", "seeds"]


def __dir__() -> list[str]:
    return sorted(__all__)
