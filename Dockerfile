# docker build -t vllm-warmup-sidecar:0.1.0 .
# What a release adds, each an argument because no file knows it:
#   --build-arg REVISION=$(git rev-parse HEAD) --build-arg CREATED=$(date -u +%FT%TZ)
#   --build-arg SOURCE=https://… (where this repository can be read)
FROM python:3.13-slim AS build
WORKDIR /src
# Without pip: what is in this folder goes into the image, and nothing is installed there any more.
RUN python -m venv --without-pip /opt/warmup
# The dependencies first: a layer that changes with pyproject.toml alone.
COPY pyproject.toml ./
# Wheels only: a machine without one says so here, instead of looking for a compiler.
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > /tmp/dependencies \
    && pip --python /opt/warmup/bin/python install --no-cache-dir --no-compile --only-binary :all: -r /tmp/dependencies \
    && find /opt/warmup/lib -depth -type d \( -name tests -o -name testing \) -path '*/site-packages/*' -exec rm -r {} +
COPY README.md LICENSE ./
COPY shapes shapes
COPY sidecar sidecar
RUN pip --python /opt/warmup/bin/python install --no-cache-dir --no-compile --no-deps .
# Byte code of the packages, and of what they import of the standard library: the base image ships
# that without, and on a read-only root each health check would compile it anew.
ENV PYTHONPYCACHEPREFIX=/opt/warmup/bytecode
WORKDIR /
RUN /opt/warmup/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/warmup/lib \
    && /opt/warmup/bin/python -c "import pkgutil, sidecar; \
[__import__(found.name) for found in pkgutil.walk_packages(sidecar.__path__, 'sidecar.')]; \
import concurrent.futures.thread, encodings.idna, encodings.utf_8_sig; \
import uvicorn.lifespan.off, uvicorn.loops.asyncio, uvicorn.protocols.http.httptools_impl"

FROM python:3.13-slim
# Nothing is written at run time but /state, and even that may be missing: the root can be
# read-only and the user any number.
ENV PATH=/opt/warmup/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/opt/warmup/bytecode \
    WARMUP_STATE_DIR=/state \
    WARMUP_STATE_OPTIONAL=true
COPY --from=build /opt/warmup /opt/warmup
# Of group 0, to which the made-up users of OpenShift belong.
RUN ["python", "-c", "import os; os.mkdir('/state'); os.chown('/state', 65532, 0); os.chmod('/state', 0o770)"]
VOLUME /state
USER 65532:65532
EXPOSE 8900
# The start period ends at the first success; a shorter one fails `up` during a long warm-up.
HEALTHCHECK --interval=5s --timeout=3s --retries=3 --start-period=24h CMD ["vllm-warmup", "check"]
# No shell between the two: SIGTERM reaches the program, and none is needed in the image.
ENTRYPOINT ["vllm-warmup"]
CMD ["serve"]
# Last, because they change with every build.
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
ARG SOURCE=
LABEL org.opencontainers.image.title="vllm-warmup-sidecar" \
      org.opencontainers.image.description="Warms a vLLM server before its users come, proves it, and only then opens the readiness gate." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.authors="The vllm-warmup-sidecar authors" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13-slim" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.documentation="$SOURCE"
