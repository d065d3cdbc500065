# SPDX-License-Identifier: Apache-2.0
# paralet with all that it needs to run. The demo, with real packets, in one command:
#
#   docker build -t paralet . && docker run --rm --privileged -v "$PWD/results:/paralet/results" paralet
#
# `--build-arg PARALET_COMMIT=$(git rev-parse --short=12 HEAD)` lets `paralet --version` name the commit.
#
# --privileged: the emulated fabric makes network namespaces, and Open vSwitch runs in them. Other commands, such as
# `docker run --rm paralet paralet run experiments/demo.yaml --fabric fluid`, need no privileges.

# Debian's packages. The development container (.devcontainer) is this stage. The digest is that of the image for all
# architectures; `docker buildx imagetools inspect debian:12-slim` shows the present one.
FROM debian:12-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171 AS packages
COPY scripts/apt-packages.txt /tmp/
RUN apt-get update -q \
    && sed 's/#.*//' /tmp/apt-packages.txt | xargs apt-get install -q -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* /tmp/apt-packages.txt

FROM packages
WORKDIR /paralet
COPY . .
# One layer, or the caches and the build tree of one command would remain in the image. Without the packages of
# scripts/apt-packages-check.txt: checks and tests need a checkout.
ARG PARALET_COMMIT=unknown
RUN PARALET_SKIP_APT=1 PIP_NO_CACHE_DIR=1 scripts/setup.sh && rm -rf build
ENV PATH=/paralet/.venv/bin:$PATH PARALET_SKIP_APT=1
CMD ["sh", "-c", "paralet run experiments/nccl.yaml && paralet run experiments/demo.yaml"]
