"""The proxies that are installed here."""

from pathlib import Path

import pytest

from tests.conftest import is_ci, unavailable
from tests.proxies.proxy import ALL, NotInstalled, program

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder runs real proxies."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.proxies)


@pytest.fixture(scope="session")
def proxies() -> tuple[str, ...]:
    """Those that are installed; a test is skipped where none is, and in CI all have to be."""
    found, missing = [], []
    for name in ALL:
        try:
            program(name)
            found.append(name)
        except NotInstalled as problem:
            missing.append(str(problem))
    if len(missing) == len(ALL) or (missing and is_ci()):
        unavailable("; ".join(missing))
    return tuple(found)
