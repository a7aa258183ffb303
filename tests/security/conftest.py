"""One victim for all attacks: what one of them breaks, the next would show."""

from collections.abc import Iterator

import pytest

from tests.security.victim import Victim, victim


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with victim(tmp_path_factory.mktemp("victim")) as one:
        yield one
