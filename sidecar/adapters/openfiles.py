"""How many files this process may have open: each request of a wave is a connection."""

import resource

MOST = 65_536


def raise_limit() -> None:
    """As far as the hard limit lets us. Linux starts processes with 1,024, which eight ranks of 128
    requests each use up, and a probe needs one too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return  # not allowed here: a wave that has too few says so itself
