import subprocess
import sys

import numpy as np
import tensorflow as tf

from tfx_tips.callbacks.scalars import ScalarWriter


def read(directory):
    """All scalars below a folder, as TensorBoard's dashboard would list them."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    return found


def test_scalars_are_read_back_by_step(tmp_path):
    writer = ScalarWriter(tmp_path / "new" / "folder")
    writer.write({"evaluation/val_loss": 0.1, "evaluation/val_mae": 2.0}, step=500)
    # Readable before the file is closed.
    expected = [("evaluation/val_loss", 500, float(np.float32(0.1)))]
    expected += [("evaluation/val_mae", 500, 2.0)]
    assert read(tmp_path / "new" / "folder") == expected
    writer.close()


def test_writing_goes_on_in_another_file_after_closing(tmp_path):
    writer = ScalarWriter(tmp_path)
    writer.close()
    assert list(tmp_path.iterdir()) == []
    for step in (1, 2):
        writer.write({"a": float(step)}, step=step)
        writer.close()
    assert sorted(read(tmp_path)) == [("a", 1, 1.0), ("a", 2, 2.0)]


def test_a_users_own_summary_settings_are_left_alone(tmp_path):
    writer = ScalarWriter(tmp_path)
    with tf.summary.record_if(False):
        writer.write({"a": 1.0}, step=3)
        assert not tf.summary.should_record_summaries()
    writer.close()
    assert read(tmp_path) == [("a", 3, 1.0)]


def test_tensorboard_is_not_imported(tmp_path):
    program = (
        "import sys\n"
        "from tfx_tips.callbacks.scalars import ScalarWriter\n"
        f"ScalarWriter({str(tmp_path)!r}).write({{'a': 1.0}}, step=3)\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'tensorboard'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
    assert read(tmp_path) == [("a", 3, 1.0)]
