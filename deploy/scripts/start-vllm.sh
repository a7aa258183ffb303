#!/bin/bash
# Start vLLM, warm it, and only then start what lets users in. Needs bash 5.1.
#
#   start-vllm.sh Qwen/Qwen3-8B --port 8000 -- haproxy -db -f haproxy.cfg
#
# Before the first `--` stand the arguments of `vllm serve`, behind it a command that runs until it
# is ended; without one the script stays with vLLM. The sidecar is set by its WARMUP_* variables.
#
# Whatever ends first ends the rest, and says so. Exit codes:
#   2-5        the warm-up's own: configuration, not warm, engine, evidence (`vllm-warmup --help`)
#   4          also: vLLM ended, with a 0 of its own (it does that when its engine dies)
#   129-143    128 + the signal that ended the script; users' way first, vLLM last
#   any other  that of vLLM or of the command behind `--`
set -u

: "${WARMUP_ENGINE_URL:=http://127.0.0.1:8000}"
export WARMUP_ENGINE_URL
vllm_grace_s=${VLLM_GRACE_S:-150} # longer than --shutdown-timeout

engine=()
while (($# > 0)) && [[ $1 != -- ]]; do
  engine+=("$1")
  shift
done
(($# > 0)) && shift
if ((${#engine[@]} == 0)); then
  echo "start-vllm: no arguments for \`vllm serve\`; give at least a model" >&2
  exit 2
fi

vllm='' warmup='' proxy=''

end() { # PID SECONDS: SIGTERM, after that time SIGKILL
  local pid=$1 tries=$(($2 * 5))
  [[ -n $pid ]] || return 0
  kill -TERM "$pid" 2>/dev/null
  while kill -0 "$pid" 2>/dev/null && ((tries-- > 0)); do sleep 0.2; done
  kill -KILL "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
}

leave() { # CODE: end what runs, in the order in which nobody is left without an answer
  trap '' TERM INT HUP
  end "$proxy" 20
  end "$warmup" 5
  end "$vllm" "$vllm_grace_s"
  exit "$1"
}

trap 'leave 143' TERM
trap 'leave 130' INT
trap 'leave 129' HUP

gone() { # CODE WHEN: vLLM has ended
  echo "start-vllm: vLLM ended $2 with exit code $1" >&2
  vllm=''
  leave "$(($1 == 0 ? 4 : $1))"
}

vllm serve "${engine[@]}" &
vllm=$!
vllm-warmup once &
warmup=$!

wait -n -p ended "$vllm" "$warmup"
code=$?
[[ $ended == "$vllm" ]] && gone "$code" 'before it was warm'
warmup=''
if ((code != 0)); then
  echo "start-vllm: the warm-up ended with exit code $code; vLLM is ended too" >&2
  leave "$code"
fi
echo "start-vllm: warm" >&2

if (($# == 0)); then
  wait "$vllm"
  gone "$?" 'while it served'
fi
"$@" &
proxy=$!
wait -n -p ended "$vllm" "$proxy"
code=$?
[[ $ended == "$vllm" ]] && gone "$code" 'while it served'
echo "start-vllm: \`$1\` ended with exit code $code; vLLM is ended too" >&2
proxy=''
leave "$code"
