"""The command `tfx-tips`: finds the subcommand, turns users' mistakes into one line."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from tfx_tips._core.errors import TfxTipsError
from tfx_tips._core.tensorflow_extra import explain_missing_tensorflow
from tfx_tips._version import __version__

# Subcommand: the module with `add_arguments(parser)` and `run(arguments) -> int`, and its
# line in the help. A module is imported only when its subcommand is asked for.
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": (
        "tfx_tips.cli.quickstart",
        "train a small net on handwritten digits, to see the package at work",
    ),
    "checkpoints": (
        "tfx_tips.cli.checkpoints",
        "list a directory's checkpoints, and show or evaluate the best",
    ),
    "experiments": (
        "tfx_tips.cli.experiments",
        "list the studies, or the trials, that an ExperimentTracker recorded",
    ),
}

# What a shell reports for a program ended by SIGINT or SIGPIPE.
_INTERRUPTED = 128 + 2
_BROKEN_PIPE = 128 + 13
_USER_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments after the program's name; `sys.argv[1:]` by default.

    Returns:
        The exit code: 0, what the subcommand returns, 2 after an error that the user can
        correct, 130 after Ctrl-C, 141 where nobody reads the output any more.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would raise again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ValueError, OSError, TfxTipsError, ImportError) as error:
        if isinstance(error, ModuleNotFoundError):
            # Not one of ours, which say what to install: a fault, so its traceback counts.
            raise
        print(f"tfx-tips: {error}", file=sys.stderr)
        return _USER_ERROR


def _run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tfx-tips",
        description="Training pipelines for Keras 3 on TensorFlow: looks at what runs have left.",
    )
    parser.add_argument("--version", action="version", version=f"tfx-tips {__version__}")
    subparsers = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    wanted = next((word for word in words if not word.startswith("-")), None)
    module = None
    for name, (module_name, help_line) in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_line, description=help_line)
        if name == wanted:
            module = importlib.import_module(module_name)
            module.add_arguments(subparser)
    arguments = parser.parse_args(words)
    with explain_missing_tensorflow():
        return int(module.run(arguments)) if module is not None else 0
