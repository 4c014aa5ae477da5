import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_tips.callbacks import StepEvaluation
from tfx_tips.callbacks.model_export import export_model

layers = keras.layers


def small():
    model = keras.Sequential([layers.Input((4,)), layers.Dropout(0.5), layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def served(directory, x):
    model = tf.saved_model.load(str(directory))
    return np.asarray(model.serve(x))


@pytest.fixture
def data(rng):
    x = rng.normal(size=(16, 4)).astype("float32")
    return x, rng.normal(size=(16, 2)).astype("float32")


def test_each_evaluation_leaves_a_model_that_serves_its_outputs(data, tmp_path, capsys):
    x, y = data
    model, outputs = small(), []
    evaluation = StepEvaluation(data, every_steps=2, export=True, log_dir=tmp_path)
    evaluation.subscribe(lambda record: outputs.append(np.asarray(model(x, training=False))))
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[evaluation])
    folders = sorted((tmp_path / "exports").iterdir())
    assert [folder.name for folder in folders] == ["step-00000002", "step-00000004"]
    for folder, output in zip(folders, outputs, strict=True):
        np.testing.assert_allclose(served(folder, x), output, rtol=1e-6)
    assert not np.array_equal(*outputs)
    assert capsys.readouterr().out == ""


def test_an_export_replaces_an_older_one_and_what_a_killed_process_left(data, tmp_path):
    x, _ = data
    target = tmp_path / "exports" / "step-1"
    stray = tmp_path / "exports" / ".unfinished-step-9"
    for folder in (target, stray):
        folder.mkdir(parents=True)
        (folder / "old").touch()
    model = small()
    export_model(model, target)
    assert [folder.name for folder in target.parent.iterdir()] == ["step-1"]
    assert not (target / "old").exists()
    np.testing.assert_allclose(served(target, x), model(x), rtol=1e-6)


def test_an_export_that_fails_leaves_the_older_one(data, tmp_path):
    x, _ = data
    model, target = small(), tmp_path / "step-1"
    export_model(model, target)
    with pytest.raises(ValueError, match="built"):
        export_model(keras.Sequential([layers.Dense(2)]), target)
    np.testing.assert_allclose(served(target, x), model(x), rtol=1e-6)


def test_nothing_is_exported_without_a_folder(data):
    with pytest.raises(ValueError, match="Pass `log_dir`"):
        StepEvaluation(data, every_steps=2, export=True)
