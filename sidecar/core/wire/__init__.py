"""What goes over the wire and what comes back: prompts, streams, metrics."""
