"""The record of a checkpoint: what it accepts, and its manifest form."""

import json
import math
import platform
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_tips
from tfx_tips.callbacks.checkpoint_record import (
    CheckpointRecord,
    manifest_text,
    parse_manifest,
    record_from_manifest,
    running_versions,
    scalar_metrics,
)


def record(**fields):
    return CheckpointRecord(
        **{
            "path": "/ckpt/step-00000012.keras",
            "sequence": 1,
            "step": 12,
            "epoch": 0,
            "batch": 12,
            "metrics": {"val_loss": 0.5},
            "monitor": "val_loss",
            "mode": "min",
            "time": "2026-01-02T03:04:05+00:00",
            "size_bytes": 3,
            "sha256": "0" * 64,
            "weights_only": False,
            **fields,
        }
    )


def test_share_of_budget_is_step_over_total_or_unknown():
    assert record(total_steps=48).share_of_budget == 0.25
    assert record().share_of_budget is None


def test_is_immutable_and_hashable():
    one = record(random_generators=[[1]], directions={"val_loss": "min"})
    assert len({one, record(random_generators=[[1]], directions={"val_loss": "min"})}) == 1
    with pytest.raises(AttributeError):
        one.step = 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", True),
        ("step", 1.0),
        ("sequence", -1),
        ("metrics", {"a": None}),
        ("metrics", {1: 1.0}),
        ("metrics", [1.0]),
        ("mode", "auto"),
        ("directions", {"a": "up"}),
        ("total_steps", 0),
        ("seed", True),
        ("versions", {"keras": 3}),
        ("sha256", "A" * 64),
        ("weights_only", 1),
        ("random_generators", "state"),
    ],
)
def test_a_value_of_another_kind_is_an_error_that_names_it(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be .* Received: {field}="):
        record(**{field: value})


def test_metrics_become_python_floats():
    metrics = record(metrics={"a": np.float32(0.5), "b": 2}).metrics
    assert metrics == {"a": 0.5, "b": 2.0}
    assert all(type(value) is float for value in metrics.values())


def test_the_manifest_gives_the_same_record_at_another_place():
    metrics = {"val_loss": 0.1 + 0.2, "tiny": 5e-324, "inf": math.inf}
    written = record(
        metrics=metrics, seed=3, total_steps=99, random_generators=[{"state": [1, 2**32]}]
    )
    text = manifest_text(written, file="step-00000012.keras")
    assert "/ckpt" not in text
    values = parse_manifest(text.encode())
    assert values["file"] == "step-00000012.keras"
    assert record_from_manifest(values, path=written.path) == written
    assert record_from_manifest(values, path="elsewhere").metrics == metrics


def test_the_manifest_is_plain_json():
    values = json.loads(manifest_text(record(), file="step-00000012.keras"))
    assert values["format"] == 1
    assert values["metrics"] == {"val_loss": 0.5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "no JSON object"),
        (b'{"format": 2}', "has format 2, this version reads 1"),
        (b"{}", "has format None"),
    ],
)
def test_what_is_no_manifest_is_a_value_error_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_manifest(text)


def test_a_missing_field_is_named():
    values = parse_manifest(manifest_text(record(), file="step-00000012.keras").encode())
    del values["sha256"]
    with pytest.raises(ValueError, match=r"a field is missing: .*'sha256'"):
        record_from_manifest(values, path="x")


def test_scalar_metrics_keeps_single_numbers_of_any_kind():
    logs = {
        "float": 0.5,
        "int": 2,
        "numpy": np.float32(0.25),
        "array": np.array(3.0),
        "tensor": tf.constant(4.0),
        "bfloat16": keras.ops.cast(keras.ops.convert_to_tensor(1.5), "bfloat16"),
        "nan": math.nan,
        "vector": np.array([1.0]),
        "text": "low",
        "none": None,
    }
    numbers = scalar_metrics(logs)
    assert math.isnan(numbers.pop("nan"))
    assert numbers == {
        "float": 0.5,
        "int": 2.0,
        "numpy": 0.25,
        "array": 3.0,
        "tensor": 4.0,
        "bfloat16": 1.5,
    }


def test_running_versions_name_what_is_loaded():
    assert running_versions() == {
        "tfx_tips": tfx_tips.__version__,
        "python": platform.python_version(),
        "keras": keras.__version__,
        "backend": "tensorflow",
        "tensorflow": tf.__version__,
    }


@pytest.mark.multi_process
def test_running_versions_load_nothing():
    script = (
        "import sys; from tfx_tips.callbacks.checkpoint_record import running_versions; "
        "print(sorted(running_versions()), {'keras', 'numpy'} & set(sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert printed.strip() == "['python', 'tfx_tips'] set()"
