"""What users copy from `deploy/`, run as it stands there."""
