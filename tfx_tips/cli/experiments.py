"""`tfx-tips experiments`: lists the studies, or trials, that an ExperimentTracker recorded."""

import argparse

from tfx_tips.reports.experiment_tables import studies_table, trials_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the subcommand's arguments."""
    parser.add_argument("directory", metavar="DIRECTORY", help="what ExperimentTracker was given")
    parser.add_argument(
        "--study", metavar="NAME", help="only this study, and how to repeat its best trial"
    )
    parser.add_argument(
        "--trials", action="store_true", help="one line a trial, the best of each study first"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table.

    Raises:
        FileNotFoundError: If the directory holds no table.
        ValueError: If a table is damaged, or knows no such study.
    """
    table = trials_table if arguments.trials else studies_table
    print(table(arguments.directory, study=arguments.study))
    return 0
