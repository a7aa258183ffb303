#!/usr/bin/env bash
# vLLM on either of the two nodes; what differs comes from the compose files, the rest from .env.
set -euo pipefail

arguments=(
  "$MODEL" --served-model-name "$SERVED_MODEL_NAME"
  --tensor-parallel-size 2 --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$HEAD_ADDRESS"
  --max-model-len "$MAX_MODEL_LEN"
  --max-num-seqs "$MAX_NUM_SEQS" # as engine.max_num_seqs in the shapes file
  --default-chat-template-kwargs "{\"thinking\": $DEFAULT_THINKING}"
  --jit-monitor-verbose # without it a kernel is named once, whatever it compiles later
)
if ((MTP_NUM_TOKENS > 0)); then # as engine.draft_tokens in the shapes file
  arguments+=(--speculative-config "{\"method\": \"mtp\", \"num_speculative_tokens\": $MTP_NUM_TOKENS}")
fi
read -ra more <<<"$EXTRA_ARGUMENTS"
arguments+=("${more[@]}")

if ((NODE_RANK > 0)); then
  exec vllm serve "${arguments[@]}" --headless # no port: only its compile lines tell of it
fi

# SIGTERM of `docker stop` goes on to vLLM, also one that comes while it is being started.
engine='' is_stopping=''
trap 'is_stopping=1; [[ -z $engine ]] || kill -TERM "$engine" 2>/dev/null || true' TERM INT

# What vLLM prints goes to `docker logs` as before and into a file that the sidecar reads: nothing
# is lost, and neither of the two waits for the other. The file begins anew with each start and is
# emptied when it is full; the sidecar follows both.
: >/logs/vllm.log
while sleep 60; do
  if (($(stat -c %s /logs/vllm.log) > 200000000)); then : >/logs/vllm.log; fi
done &
exec 3> >(exec tee -a /logs/vllm.log)
tee=$!
vllm serve "${arguments[@]}" --host 0.0.0.0 --port "$VLLM_PORT" >&3 2>&1 3>&- &
engine=$!
[[ -z $is_stopping ]] || kill -TERM "$engine" 2>/dev/null || true
exec 3>&-

# This shell stays until tee has vLLM's last words, two seconds at most: a process that outlives vLLM
# must not keep the container from starting again.
code=0
wait "$engine" || code=$?
while kill -0 "$engine" 2>/dev/null; do # a signal ended the wait, not vLLM
  code=0
  wait "$engine" || code=$?
done
for _ in {1..20}; do
  kill -0 "$tee" 2>/dev/null || break
  sleep 0.1
done
exit "$code"
