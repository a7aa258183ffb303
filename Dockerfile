FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/warmup
# the dependencies first: a layer that changes with pyproject.toml alone
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > /tmp/dependencies \
    && pip --python /opt/warmup/bin/python install --no-cache-dir -r /tmp/dependencies
COPY README.md LICENSE ./
COPY shapes shapes
COPY sidecar sidecar
RUN pip --python /opt/warmup/bin/python install --no-cache-dir --no-deps . \
    && install -d -o 65532 -g 65532 -m 0700 /state

FROM python:3.13-slim
LABEL org.opencontainers.image.title="vllm-warmup-sidecar" \
      org.opencontainers.image.description="Warms a vLLM server before its users come, proves it, and only then opens the readiness gate." \
      org.opencontainers.image.licenses="Apache-2.0"
# nothing is written at run time but /state: the root may be read-only
ENV PATH=/opt/warmup/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    WARMUP_STATE_DIR=/state
COPY --from=build /opt/warmup /opt/warmup
COPY --from=build --chown=65532:65532 /state /state
VOLUME /state
USER 65532:65532
EXPOSE 8900
# the start period ends at the first success; a shorter one fails `up` during a long warm-up
HEALTHCHECK --interval=5s --timeout=3s --retries=3 --start-period=24h CMD ["vllm-warmup", "check"]
ENTRYPOINT ["vllm-warmup"]
CMD ["serve"]
