"""`vllm-warmup` and `python -m sidecar`."""

import sys


def main() -> int:
    """Run the command line. Returns the exit code of `sidecar.core.errors.ExitCode`."""
    if sys.argv[1:2] == ["check"]:
        # Before anything heavy: it runs every few seconds beside the waves.
        from sidecar.check import main as check

        return check(sys.argv[2:])
    from sidecar.cli.main import main as cli

    return cli(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
