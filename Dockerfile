# SPDX-License-Identifier: Apache-2.0
# paralet with all that it needs to run. The demo, with real packets, in one command:
#
#   docker build -t paralet . && docker run --rm --privileged -v "$PWD/results:/paralet/results" paralet
#
# --privileged: the emulated fabric makes network namespaces, and Open vSwitch runs in them. Other commands, such as
# `docker run --rm paralet paralet run experiments/demo.yaml --fabric fluid`, need no privileges.
FROM debian:12-slim
WORKDIR /paralet
COPY . .
# One layer, or the lists, caches and build tree of one command would remain in the image. Without the packages of
# scripts/apt-packages-check.txt: checks and tests need a checkout.
RUN apt-get update -q \
    && sed 's/#.*//' scripts/apt-packages.txt | xargs apt-get install -q -y --no-install-recommends ca-certificates \
    && PARALET_SKIP_APT=1 PIP_NO_CACHE_DIR=1 scripts/setup.sh \
    && rm -rf /var/lib/apt/lists/* build
ENV PATH=/paralet/.venv/bin:$PATH PARALET_SKIP_APT=1
CMD ["sh", "-c", "paralet run experiments/nccl.yaml && paralet run experiments/demo.yaml"]
