"""What stands at the end of each command's help: lines to paste, and the exit codes."""

EXIT_CODES = """\
exit codes:
  0  warm (serve: ended by SIGTERM)       3  not converged: not warm within the budget
  1  a bug of this program                4  engine unavailable, or it refuses
  2  configuration: flag, variable, file  5  evidence missing where it was required
  128 + n: `once` was ended by signal n
"""

DESCRIPTION = """\
Warms a vLLM server before its users come, proves it, and only then opens the readiness gate.
"""

EPILOG = f"""\
examples:
  vllm-warmup serve --engine-url http://vllm:8000        # the sidecar: /ready on port 8900
  vllm-warmup once --engine-url http://localhost:8000    # warm once, exit 0 when warm
  vllm-warmup plan --shapes my-shapes.yaml               # what would be sent, and what it costs

{EXIT_CODES}"""

VARIABLES = """\
variables (each flag is one, too), of which there is no flag:
  WARMUP_ENGINE_URLS     several servers instead of one, name=url each
  WARMUP_API_KEY         the engine's key; on a command line `ps` would show it
  WARMUP_STATE_OPTIONAL  true: go on where the state folder can't be written
  WARMUP_SETTINGS_FILE   as --settings
  WARMUP_CHECK_URL       what `vllm-warmup check` asks
"""

SERVE = """\
examples:
  vllm-warmup serve --engine-url http://vllm:8000
  vllm-warmup serve --shapes /shapes/mine.yaml --state-dir /state --ready-file /run/ready
  WARMUP_ENGINE_URL=http://vllm:8000 WARMUP_API_KEY_FILE=/run/secrets/key vllm-warmup serve
"""

ONCE = """\
examples:
  vllm-warmup once --engine-url http://localhost:8000 && ./let-users-in
  vllm-warmup once --shapes tiny --json > report.json
"""

PLAN = """\
examples:
  vllm-warmup plan --shapes default
  vllm-warmup plan --shapes my-shapes.yaml --engine-url http://localhost:8000
  vllm-warmup plan --prefill-tokens-per-s 2000 --decode-tokens-per-s 25 --json
"""

REPORT = """\
examples:
  vllm-warmup report --state-dir /state
  vllm-warmup report --state-dir /state --json
  vllm-warmup report --suggest           # cells for what compiled while the gate was open
"""

STATE = """\
examples:
  vllm-warmup state show --state-dir /state
  vllm-warmup state clear --state-dir /state     # cells that an engine died on are sent again
"""

SHAPES = """\
examples:
  vllm-warmup shapes check my-shapes.yaml other.yaml
  vllm-warmup shapes list
  vllm-warmup shapes schema > shapes/schema.json
  vllm-warmup shapes suggest --engine-url http://localhost:8000 > traffic.yaml
"""

SUGGEST = """\
examples:
  vllm-warmup shapes suggest --engine-url http://localhost:8000 --shapes my-shapes.yaml
  vllm-warmup shapes suggest --state-dir /state --watch 600 > traffic.yaml
"""

SIM = """\
examples:
  vllm-warmup sim --port 8000
  vllm-warmup sim --model tiny --seed 7 --time-scale 0.1 --log-file engine.log
  vllm-warmup sim --axes --ranks 2 --draft-tokens 3 --prompt-tokens-details
  curl -s localhost:8000/_sim        # what was cold and who paid; POST makes it fail
"""
