"""adapters/openfiles: connections for the largest wave."""

import resource

from sidecar.adapters.openfiles import MOST, raise_limit


def test_the_limit_is_raised_as_far_as_it_goes() -> None:
    """A wave of 1,024 requests is one of 1,024 connections, whatever the shell's limit was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, hard))
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
