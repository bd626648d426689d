# ATOM inside vLLM on AMD Instinct: docker build -f docker/rocm-vllm.Dockerfile -t atom-vllm:rocm .
# Not built by us, who have no such machine: docs/amd.md says what was tested and how to check a built image.
#
# vLLM's own image for ROCm: it has torch, vLLM and an AITER that fits it. docs/vllm.md has the range of versions.
ARG BASE=vllm/vllm-openai-rocm:v0.26.0
FROM ${BASE}

COPY packages /opt/atom/packages
# The image's torch, vLLM and AITER stay: no package of ours asks for others.
RUN python3 -m pip install --no-cache-dir \
    /opt/atom/packages/atom-kernels /opt/atom/packages/atom-models /opt/atom/packages/atom-vllm

# The base image's entry point is `vllm serve`; arguments of `docker run` are its arguments.
