"""What acts: one outside thing each."""
