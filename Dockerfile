# SPDX-License-Identifier: Apache-2.0
# paralet with all that it needs. The demo, with real packets, in one command:
#
#   docker build -t paralet . && docker run --rm --privileged -v "$PWD/results:/paralet/results" paralet
#
# --privileged: the emulated fabric makes network namespaces, and Open vSwitch runs in them. Other commands, such as
# `docker run --rm paralet paralet run experiments/demo.yaml --fabric fluid`, need no privileges.
FROM debian:12-slim
WORKDIR /paralet
COPY . .
# Kept in one layer, or the lists and the build tree of one would remain in the image.
RUN apt-get update -q \
    && apt-get install -q -y --no-install-recommends ca-certificates \
    && scripts/setup.sh \
    && rm -rf /var/lib/apt/lists/* build/cmake
ENV PATH=/paralet/.venv/bin:$PATH PARALET_SKIP_APT=1
CMD ["sh", "-c", "paralet run experiments/nccl.yaml && paralet run experiments/demo.yaml"]
