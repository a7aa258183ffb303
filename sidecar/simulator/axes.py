"""Cold rules by axis: what a request pays for that differs from a plain one in one respect.

Each is modelled on a report or a measurement of vLLM, its cost shortened. `vllm-warmup sim --axes`
has all of them cold; the truth harness draws its own around the same features.
"""

from sidecar.simulator.cold import Rule
from sidecar.simulator.rulesfile import parse_rules

_TEXTS = {
    # The sampler's kernel is compiled for each set of filters (vLLM #45601).
    "sampling": "- {name: _topk_topp_kernel, feature: sampler, cost_s: [0.2, 0.5], logged: true}",
    # By the next power of two (vLLM #55918); the rank count is compiled without a line.
    "logprobs": """
- {name: _topk_log_softmax_kernel, feature: logprobs_pow2, cost_s: [0.2, 0.4], logged: true}
- {name: logprobs_rank_count, feature: logprobs, cost_s: 0.5, logged: false}
""",
    "prompt_logprobs": (
        "- {name: prompt_logprobs_gather, feature: prompt_logprobs, cost_s: 0.3, logged: false}"
    ),
    # The bitmask once for all, the grammar once for each.
    "structured": """
- {name: apply_token_bitmask_inplace_kernel, feature: grammar, cost_s: 0.5, logged: true}
- {name: grammar_compile, feature: grammar_text, cost_s: [0.15, 0.4], logged: false}
""",
    # HAS_INITSTATES: a second chunk, or a prefix hit (vLLM #3901, TensorRT-LLM #16177).
    "context": """
- name: _gather_initial_states_kernel
  key: [has_context]
  when: {has_context: true}
  cost_s: [0.4, 0.8]
  logged: true
""",
    # The chunk that is left of a long prompt, by how Triton specialises its length.
    "chunk": """
- name: _chunk_scan_fwd_kernel
  key: [tokens_class]
  when: {has_context: true, prefill: true}
  cost_s: [0.2, 0.5]
  logged: true
""",
    # vLLM warms prefill and decode apart (0.33 model_executor/warmup).
    "mixed": """
- {name: mixed_attention_module, key: [mixed], when: {mixed: true}, cost_s: 0.4, logged: false}
""",
    # 513 was cold where 514 was not (an H200, vLLM 0.26).
    "off_grid": """
- name: fused_moe_kernel_other
  key: [tokens_class, reqs_class]
  when: {prefill: true}
  cost_s: [0.2, 0.6]
  logged: true
""",
    # A graph's first replay after its capture.
    "cudagraph": """
- name: first_replay
  key: [padded]
  when: {prefill: false, above_capture: false}
  cost_s: [0.15, 0.3]
  logged: false
""",
    # vLLM #39790 for the first drafts, vllm-ascend #14324 for what acceptance changes.
    "drafts": """
- {name: rejection_sample_kernel, key: [drafts], when: {drafts: [none, some, all]}, cost_s: 0.4,
   logged: true}
- {name: expand_kernel, key: [accepted_pow2], when: {drafts: [some, all]}, cost_s: [0.15, 0.3],
   logged: true}
""",
    # Every data-parallel rank is a process with caches of its own.
    "rank": "- {name: first_request, key: [rank], cost_s: [0.8, 1.6], logged: false}",
}

AXES: dict[str, tuple[Rule, ...]] = {
    axis: parse_rules(text, f"the rules of {axis}") for axis, text in _TEXTS.items()
}
AXIS_RULES: tuple[Rule, ...] = tuple(
    rule for axis, rules in AXES.items() for rule in rules if axis != "rank"
)
"""All of them; that a first request is slow is among the built-in rules already."""
