"""Tests that take the network and half a minute run only on demand: ``tox -e package``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave test_distributions.py to those who name its folder on the command line."""
    if collection_path.name != "test_distributions.py" or any(map(_is_ours, config.args)):
        return None
    return True


def _is_ours(argument: str) -> bool:
    return Path(argument.partition("::")[0]).resolve().is_relative_to(HERE)
