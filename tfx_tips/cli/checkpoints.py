"""`tfx-tips checkpoints`: lists a directory's checkpoints and shows, or evaluates, the best."""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfx_tips._core.text_table import format_table, visible
from tfx_tips._core.validation import require_positive_int
from tfx_tips.callbacks.checkpoint_record import CheckpointRecord
from tfx_tips.callbacks.checkpoint_selection import first_intact, rank_checkpoints
from tfx_tips.callbacks.checkpoint_store import CheckpointStore
from tfx_tips.reports.checkpoint_tables import checkpoint_table, place_in_training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the subcommand's arguments."""
    parser.add_argument("directory", metavar="DIRECTORY", help="a path, or a URL such as gs://...")
    parser.add_argument("--monitor", metavar="NAME", help="the metric that chooses the best")
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        default="auto",
        help="whether smaller or larger values are better (default: as recorded)",
    )
    parser.add_argument(
        "--evaluate",
        metavar="MODULE:FUNCTION",
        help="evaluate the best one on what the function returns, validation data as `fit` takes "
        "it or a pair (model, data), and record the values with it; needs Keras' backend",
    )
    parser.add_argument(
        "--name",
        default="full",
        help="what stands before the names of the recorded values (default: full)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="rows a batch, where the data are arrays"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table and the best checkpoint; evaluates it where asked to.

    Raises:
        CheckpointError: If there is no checkpoint, or none that can be chosen.
        ValueError: If an argument is wrong.
    """
    if arguments.batch_size is not None:
        require_positive_int("--batch-size", arguments.batch_size, "Leave it out for the default.")
    store = CheckpointStore(arguments.directory)
    records = store.records()
    monitor: str = arguments.monitor or (records[-1].monitor if records else "")
    best = None
    try:
        ranked = rank_checkpoints(
            records, directory=store.directory, monitor=arguments.monitor, mode=arguments.mode
        )
        best = first_intact(ranked, store.verified)
    finally:
        # Also where none can be chosen: the table shows why.
        if records:
            print(checkpoint_table(records, metric=monitor, chosen=best), flush=True)
    print(f"\nbest: {place_in_training(best)}, {visible(monitor)} {best.metrics[monitor]:.6g}")
    print(f"path: {best.path}", flush=True)
    if arguments.evaluate is not None:
        _evaluate(store, best, arguments)
    return 0


def _evaluate(
    store: CheckpointStore, record: CheckpointRecord, arguments: argparse.Namespace
) -> None:
    # Its start-up messages would stand between the table and the values.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _current_directory_importable():
        make_validation = load_function(arguments.evaluate)
        # Imported here, since this alone needs Keras.
        from tfx_tips.callbacks.checkpoint_evaluation import evaluate_checkpoint

        values = evaluate_checkpoint(
            store,
            record,
            make_validation,
            name=arguments.name,
            batch_size=arguments.batch_size,
        )
    print(f"\nevaluated with {arguments.evaluate}, recorded in its manifest:")
    print(format_table(["metric", "value"], list(values.items())))


def load_function(text: str) -> Callable[[], Any]:
    """Imports what `MODULE:FUNCTION` names.

    Raises:
        ValueError: If it does not name a function of a module that can be imported.
    """
    module_name, separator, function_name = text.partition(":")
    expectation = (
        "`--evaluate` must be MODULE:FUNCTION, a function without arguments in a module that "
        f"Python can import from here. Received: --evaluate={text!r}"
    )
    if not (module_name and separator and function_name):
        raise ValueError(f"{expectation}. Write for example `my_data:validation`.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{expectation}; there is no module {error.name!r}. Start the command in the folder "
            "where it stands, or install it."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{expectation}; {module_name} has no function {function_name!r}.")
    return function


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    # A console script has its own folder there instead.
    directory = os.getcwd()
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
