"""A pytest plugin: ``--failures FILE`` gets the text of each failure when it happens, so that a run
that is cut off keeps those that it reached."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures", type=Path, help="append each failure's text to this file at once"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("failures")
    if path and not hasattr(config, "workerinput"):  # the workers of xdist report to their parent
        config.pluginmanager.register(_Writer(path))


class _Writer:
    def __init__(self, path: Path):
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.path.open("a") as file:
                file.write(f"--- {report.nodeid} ({report.when})\n{report.longreprtext}\n")
