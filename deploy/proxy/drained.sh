#!/bin/sh
# Waits until a vLLM server has had nothing to do for 5 seconds:
#
#     sh drained.sh http://vllm:8000 [SECONDS]
#
# The step between "its sidecar is stopped" and "it is stopped" of a rolling restart (README.md).
# Exits 0 then, 1 when SECONDS (600) have passed or it does not answer, 2 when called wrongly.
# Needs curl and awk.
set -eu

url=${1:-}
limit=${2:-600}
case $url in
http://* | https://*) ;;
*)
    echo "drained.sh: give the engine's URL, as in: sh drained.sh http://vllm:8000" >&2
    exit 2
    ;;
esac

# Five: a proxy has seen by then that the gate is shut, so nothing new comes any more.
busy=0
quiet=0
waited=0
while [ "$quiet" -lt 5 ]; do
    if [ "$waited" -ge "$limit" ]; then
        echo "drained.sh: after $limit s $url still has $busy requests" >&2
        exit 1
    fi
    page=$(curl -fsS --max-time 5 "$url/metrics") || exit 1
    busy=$(printf '%s\n' "$page" |
        awk '/^vllm:num_requests_(running|waiting)[{ ]/ { sum += $NF; seen = 1 } END { print seen ? sum : "?" }')
    if [ "$busy" = "?" ]; then
        echo "drained.sh: $url/metrics does not tell what runs (--disable-log-stats?)" >&2
        exit 1
    fi
    if [ "$busy" -eq 0 ]; then quiet=$((quiet + 1)); else quiet=0; fi
    waited=$((waited + 1))
    sleep 1
done
