#!/bin/bash
# `vllm serve "$@"` as the main process of its container, with everything that it prints also in
# $LOG_FILE, where the sidecar reads it.
#
# A plain `vllm serve … | tee` would end with tee's exit code, and SIGTERM would reach the shell
# alone. Here the signal is passed on, vLLM's own exit code is kept, and tee has written the last
# line before the container ends.
set -u

: "${LOG_FILE:?the file that the sidecar reads}"
max_bytes=${LOG_MAX_BYTES:-268435456} # 256 MiB, a quarter of the volume

if [[ -n ${API_KEY_FILE:-} ]]; then
  VLLM_API_KEY=$(<"$API_KEY_FILE") || exit 2 # in the environment: arguments are printed by vLLM and ps
  export VLLM_API_KEY
fi

# tee outlives the signals that are meant for vLLM, and ends when nobody holds the pipe any more.
exec {out}> >(trap '' TERM INT && exec tee -a "$LOG_FILE")
tee=$!

vllm serve "$@" >&"$out" 2>&1 &
vllm=$!
exec {out}>&-

interrupted=
trap 'interrupted=1; kill -TERM "$vllm" 2>/dev/null' TERM INT

# The file is emptied when it is full: tee appends, so it goes on at the start, and the sidecar
# follows. What stood in it is in the container's own log as well.
while sleep "${LOG_CHECK_S:-30}"; do
  [[ $(stat -c %s "$LOG_FILE") -gt $max_bytes ]] && : >"$LOG_FILE"
done >/dev/null 2>&1 &
trim=$!

# A signal ends `wait` early, with a status that is not vLLM's: wait again.
until
  wait "$vllm"
  code=$?
  [[ -z $interrupted ]]
do interrupted=; done

for _ in {1..50}; do # ten seconds for the last lines, should a child of vLLM hold the pipe
  kill -0 "$tee" 2>/dev/null || break
  sleep 0.2
done
kill "$trim" 2>/dev/null
exit "$code"
