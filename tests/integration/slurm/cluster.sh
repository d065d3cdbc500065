#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Two nodes of Slurm, node1 (10.9.0.1) and node2 (10.9.0.2), on one link: `cluster.sh SLURM FOLDER COMMAND..` runs a
# command on node1. SLURM has the programs. FOLDER takes what they write. All end with this script, in the namespaces
# that it makes.
set -euo pipefail

if (($$ != 1)); then # not the first process of namespaces of its own
    exec unshare --net --uts --pid --fork --kill-child --mount-proc "$0" "$@"
fi
slurm=$1 folder=$2
shift 2
plugins=$(echo "$slurm"/usr/lib/*/slurm-wlm)
export SLURM_CONF=$folder/slurm.conf LD_LIBRARY_PATH=$plugins PATH=$slurm/usr/bin:$PATH

cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=node1(10.9.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
StateSaveLocation=$folder
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=$TASK_PROLOG
SelectType=select/linear
NodeName=node1 NodeAddr=10.9.0.1
NodeName=node2 NodeAddr=10.9.0.2
PartitionName=all Nodes=ALL Default=YES
END

unshare --net --uts sleep infinity &
other=$!
while [[ /proc/$other/ns/net -ef /proc/self/ns/net ]]; do sleep 0.05; done
ip link add cable type veth peer name cable netns $other
node() { # NAME ADDRESS COMMAND..: makes a node of this namespace
    hostname "$1"
    ip link set lo up
    ip address add "$2/24" dev cable
    ip link set cable up
    shift 2
    "$@"
}
export -f node
daemon=("$slurm/usr/sbin/slurmd-wlm" -D -d "$slurm/usr/sbin/slurmstepd-wlm")
nsenter --target $other --net --uts bash -c 'node node2 10.9.0.2 "$@"' bash "${daemon[@]}" >"$folder/node2.log" 2>&1 &
node node1 10.9.0.1 "${daemon[@]}" >"$folder/node1.log" 2>&1 &
until ip -brief address show cable | grep -q 10.9.0.1; do sleep 0.05; done
"$slurm/usr/sbin/slurmctld-wlm" -D >"$folder/controller.log" 2>&1 &
until scontrol ping | grep -q 'is UP'; do sleep 0.05; done
"$@"
