"""The same promises asked of the simulator and of a real vLLM: what drifts is the simulator's."""
