"""The gate, and what it is held to: boots, absences, what outlives the sidecar."""
