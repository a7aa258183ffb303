"""The sidecar over HTTP: probes, status, metrics. Reads snapshots; no route changes anything."""
