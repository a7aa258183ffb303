"""The command line: one module a command, `main` and `parser` for all of them."""
