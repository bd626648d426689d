# ATOM on AMD Instinct: docker build -f docker/rocm.Dockerfile -t atom:rocm .
# Not built by us, who have no such machine: docs/amd.md says what was tested and how to check a built image.
ARG BASE=rocm/pytorch:rocm7.0.2_ubuntu24.04_py3.12_pytorch_release_2.8.0
FROM ${BASE}

# AITER from git: the release on the package index lacks most of what is called. Any tag from v0.1.17 on will do.
ARG AITER_REF=v0.1.20.post1
# MI300X and MI325X are gfx942, MI350X and MI355X are gfx950. Fewer architectures build faster.
ARG GPU_ARCHS="gfx942;gfx950"
# 1 compiles AITER's common modules here, for minutes; 0 compiles each at its first call.
ARG PREBUILD_KERNELS=1
RUN git clone --recursive --branch ${AITER_REF} https://github.com/ROCm/aiter /opt/aiter \
    && GPU_ARCHS="${GPU_ARCHS}" PREBUILD_KERNELS=${PREBUILD_KERNELS} \
       python3 -m pip install --no-cache-dir --no-build-isolation --editable /opt/aiter

COPY packages /opt/atom/packages
# The image's torch stays: no package of ours asks for another.
RUN python3 -m pip install --no-cache-dir \
    /opt/atom/packages/atom-kernels /opt/atom/packages/atom-models \
    /opt/atom/packages/atom-core /opt/atom/packages/atom-server

EXPOSE 8000
ENTRYPOINT ["atom"]
CMD ["serve", "--help"]
