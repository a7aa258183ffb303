"""Promises of the sidecar, by tier: core, adapters, service, contract, live, containers."""
