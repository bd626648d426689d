# ATOM on NVIDIA GPUs: docker build -f docker/cuda.Dockerfile -t atom:cuda .
# Not built by us, who have no Docker: docs/serving.md says what was checked.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS wheels
COPY packages /opt/atom/packages
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /opt/atom/wheels \
    /opt/atom/packages/atom-kernels /opt/atom/packages/atom-models \
    /opt/atom/packages/atom-core /opt/atom/packages/atom-server

FROM ${BASE}
# Triton compiles what launches its kernels; the Python of this image has its headers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# torch and Triton bring CUDA's libraries; the driver is the host's (docker run --gpus all).
RUN python3 -m pip install --no-cache-dir "torch>=2.8" "triton>=3.4"
COPY --from=wheels /opt/atom/wheels /opt/atom/wheels
RUN python3 -m pip install --no-cache-dir /opt/atom/wheels/*.whl \
    && useradd --create-home atom
USER atom

EXPOSE 8000
ENTRYPOINT ["atom"]
CMD ["serve", "--help"]
