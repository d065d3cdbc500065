#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A Prolog of Slurm: a host that cannot load the plugin gets no job, and Slurm drains it. Slurm runs it as root, without
# a path, on each host: Prolog=/etc/slurm/prolog.d/* in slurm.conf. What it says is in slurmd's log.
exec timeout 60 "${PARALET:-/usr/bin/paralet}" doctor --for plugin
