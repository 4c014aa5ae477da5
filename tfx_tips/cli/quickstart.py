"""`tfx-tips quickstart`."""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("tfx-tips-quickstart"),
        help="where output goes; each run makes a folder of its own in it (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, default=600, help="optimizer steps (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same numbers (default: 0)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains, and prints a report.

    Raises:
        ImportError: If scikit-learn or TensorFlow is missing.
        ValueError: If a number is not valid.
    """
    # Its start-up messages would hide the report.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print("Starting TensorFlow ...", flush=True)
    with _native_messages_hidden():
        from tfx_tips.quickstart import run_quickstart
    from tfx_tips.reports import checkpoint_table, evaluation_curve, studies_table

    print(f"Training a small net on 1,400 handwritten digits: {arguments.steps:,} steps.")
    result = run_quickstart(arguments.directory, steps=arguments.steps, seed=arguments.seed)
    chosen, metric = result.chosen, result.chosen.monitor
    share, recorded = chosen.share_of_budget or 0.0, chosen.metrics[metric]
    tensorboard = f"tensorboard --logdir {shlex.quote(str(arguments.directory))}"
    print(
        f"""
Evaluated every so many steps on 397 other digits ({result.seconds:.0f} s in all)
{evaluation_curve(result.evaluations, metric=metric)}

Checkpoints kept: the three best, and the latest to resume from (* is the best)
{checkpoint_table(result.checkpoints, metric=metric, chosen=chosen)}

Chosen: step {chosen.step:,}, at {share:.0%} of the budget. Loaded again from its file, it
classifies {result.reloaded_accuracy:.2%} of those digits correctly; {recorded:.2%} were recorded.
{chosen.path}

The study so far
{studies_table(result.experiments_directory)}

Everything is in {result.run_directory}. To see the curves:
    pip install 'tfx-tips[tensorboard]' && {tensorboard}"""
    )
    return 0


@contextlib.contextmanager
def _native_messages_hidden() -> Iterator[None]:
    """Hides what libraries below Python write to standard error; TensorFlow does at import."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # a notebook, or a test that captures output
        yield
        return
    kept = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nowhere)
