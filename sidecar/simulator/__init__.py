"""A simulated vLLM with real cold costs: a pure engine in virtual time, and a server around it."""
