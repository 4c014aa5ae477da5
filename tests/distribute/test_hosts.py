"""Which host this is, for clusters written by hand."""

import json

import pytest

from tfx_tips.distribute import host_index, is_chief, num_hosts

HOSTS = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]


@pytest.fixture
def tf_config(monkeypatch):
    def set_config(value):
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv("TF_CONFIG", text)

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return set_config


def place(strategy=None):
    return host_index(strategy), num_hosts(strategy), is_chief(strategy)


class StrategyWithResolver:
    """Stands for a `tf.distribute.Strategy`: all that is asked of one is its resolver."""

    def __init__(self, cluster_resolver):
        self.cluster_resolver = cluster_resolver


def test_without_tf_config_there_is_one_host_and_it_is_the_chief(tf_config):
    assert place() == (0, 1, True)


@pytest.mark.parametrize("value", ["", "  ", {}, {"cluster": {}}, {"task": {"type": "worker"}}])
def test_tf_config_without_a_cluster_is_a_single_host(tf_config, value):
    tf_config(value)

    assert place() == (0, 1, True)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_of_workers_alone_the_first_is_the_chief(tf_config, index):
    tf_config({"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": index}})

    assert place() == (index, 3, index == 0)


@pytest.mark.parametrize("chief", ["chief", "master"])
@pytest.mark.parametrize(
    ("kind", "index", "expected"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
)
def test_a_chief_is_counted_before_the_workers(tf_config, chief, kind, index, expected):
    kind = chief if kind == "chief" else kind
    tf_config(
        {
            "cluster": {"worker": HOSTS[1:], chief: HOSTS[:1]},
            "task": {"type": kind, "index": index},
        }
    )

    assert place() == (expected, 3, expected == 0)


def test_parameter_servers_and_evaluators_do_not_count_as_hosts_that_train(tf_config):
    cluster = {"chief": HOSTS[:1], "worker": HOSTS[1:2], "ps": HOSTS[2:], "evaluator": HOSTS[2:]}
    tf_config({"cluster": cluster, "task": {"type": "worker", "index": 0}})

    assert place() == (1, 2, False)


def test_an_evaluator_is_alone_and_its_own_chief(tf_config):
    tf_config(
        {"cluster": {"worker": HOSTS}, "task": {"type": "evaluator", "index": 0}},
    )

    assert place() == (0, 1, True)


def test_index_may_be_written_as_text_and_the_task_be_left_out(tf_config):
    tf_config({"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": "2"}})
    assert place() == (2, 3, False)

    tf_config({"cluster": {"worker": HOSTS}})
    assert place() == (0, 3, True)


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "worker",
        "[1, 2]",
        "3",
        {"cluster": [HOSTS]},
        {"cluster": {"worker": 3}},
        {"cluster": {"worker": HOSTS[0]}},
        {"cluster": {"worker": HOSTS}, "task": "worker"},
        {"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": "first"}},
        {"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": None}},
    ],
)
@pytest.mark.parametrize("question", [host_index, num_hosts, is_chief])
def test_malformed_tf_config_is_refused_and_shown(tf_config, value, question):
    tf_config(value)

    with pytest.raises(ValueError, match=r"TF_CONFIG must be .* Received: TF_CONFIG=.* Unset it"):
        question()


@pytest.mark.parametrize(
    "task",
    [
        {"type": "worker", "index": 3},
        {"type": "worker", "index": -1},
        {"type": "chief", "index": 0},
        {"type": "ps", "index": 0},
        {"type": "wroker", "index": 0},
    ],
)
def test_task_that_is_not_in_the_cluster_is_refused_and_named(tf_config, task):
    tf_config({"cluster": {"worker": HOSTS}, "task": task})

    with pytest.raises(ValueError, match=f"Received: type='{task['type']}', index={task['index']}"):
        host_index()


def test_strategy_s_own_cluster_counts_more_than_tf_config(tf_config):
    import tensorflow as tf

    tf_config({"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": 2}})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": HOSTS[:2]}), task_type="worker", task_id=1
    )

    assert place(StrategyWithResolver(resolver)) == (1, 2, False)


def test_strategy_on_one_machine_leaves_the_answer_to_tf_config(tf_config):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    assert place(strategy) == (0, 1, True)

    tf_config({"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": 1}})
    assert place(strategy) == (1, 3, False)
    assert place(StrategyWithResolver(None)) == (1, 3, False)
