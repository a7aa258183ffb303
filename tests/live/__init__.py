"""Against a real vLLM server, which the tier starts itself (`make vllm` installs it)."""
