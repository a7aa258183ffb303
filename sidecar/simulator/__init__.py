"""A simulated vLLM engine with real cold costs: a pure model in virtual time, and a server on it."""
