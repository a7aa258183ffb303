"""What an operator is told of a file that can't be read."""

import errno
import os

import pytest

from sidecar.core.errors import unreadable


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EACCES, "(permission denied); let the user that this runs as read it (65532 in the"),
        (errno.EISDIR, "(is a directory); name a file, and if it is a mounted one, see that it"),
        (errno.ENOENT, "(no such file or directory); correct the path"),
    ],
)
def test_each_cause_has_its_own_remedy(number: int, sentence: str) -> None:
    """The path of a secret that only its owner may read is right: to correct it mends nothing."""
    assert unreadable(OSError(number, os.strerror(number))).startswith(sentence)
