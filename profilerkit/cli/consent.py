"""The settings of a verb, and consent to the rules of the project, which are code."""

import argparse

from profilerkit.cli.console import Console
from profilerkit.config import Settings, load_settings
from profilerkit.errors import UsageError


def add_allow_rules(parser: argparse.ArgumentParser) -> None:
    """Declare ``--allow-rules``."""
    parser.add_argument(
        "--allow-rules",
        action="store_true",
        help="load the rules that pyproject.toml names, now and later, until one of their files changes",
    )


def project_settings(arguments: argparse.Namespace, console: Console, *, runs_rules: bool = True) -> Settings:
    """Return the settings in force, and say whose rules are loaded, or were found and are not.

    Raises:
        UsageError: a setting is wrong, or ``--allow-rules`` finds no rules.
    """
    from pathlib import Path

    from profilerkit.consent import allow
    from profilerkit.plugins import about_project_rules

    settings = load_settings(vars(arguments))
    if arguments.allow_rules:
        if settings.rules_from is None or not Path(settings.rules_path or "").exists():
            raise UsageError(
                "--allow-rules found no rules",
                cause="no pyproject.toml here or above names a rules-path that exists",
                hint='write rules-path = "checks" under [tool.profilerkit]',
            )
        record = allow(Path(settings.rules_path or ""))
        console.note(f"allowed the rules in {settings.rules_path} as they are now; recorded in {record}")
    if runs_rules:
        for sentence in about_project_rules(settings):
            console.note(sentence)
    return settings
