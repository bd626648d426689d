# ATOM on a CPU: docker build -f docker/cpu.Dockerfile -t atom:cpu .
# Not built by us, who have no Docker: docs/serving.md says what was checked.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS wheels
COPY packages /opt/atom/packages
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /opt/atom/wheels \
    /opt/atom/packages/atom-kernels /opt/atom/packages/atom-models \
    /opt/atom/packages/atom-core /opt/atom/packages/atom-server

FROM ${BASE}
# The C kernels are compiled at their first use, for the processor that runs them.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# torch for CPUs comes first: from the usual index it would bring CUDA.
RUN python3 -m pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch>=2.8"
COPY --from=wheels /opt/atom/wheels /opt/atom/wheels
RUN python3 -m pip install --no-cache-dir /opt/atom/wheels/*.whl \
    && useradd --create-home atom
USER atom

EXPOSE 8000
ENTRYPOINT ["atom"]
CMD ["serve", "--help"]
