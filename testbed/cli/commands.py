# SPDX-License-Identifier: Apache-2.0
"""The commands, each with the first sentence of its help, so that `paralet --help` and completion import no command.

To add a command: a module like its neighbours, named like the command but with underscores, and a line here.
"""

COMMANDS = {
    "bench": "Measure NAME and its peer, or the best of its cases, and print the ratios ours / peer.",
    "capture": "Show the packets at PORT of a fabric that is up, as tcpdump does, until Ctrl-C.",
    "cluster": "Simulate the jobs of a trace on the cluster of SPEC with every strategy and seed.",
    "doctor": "Check what this machine can be used for, and print the command that installs what is missing.",
    "exec": "Run PROGRAM on the host or switch NODE of a fabric that `paralet run` or `paralet shell` has brought up.",
    "export": "Print the topology of FILE, or with `--to cm` its traffic, in a format of another program.",
    "graph": "Draw the topology of the file SPEC as an SVG picture.",
    "inspect": "Show what a fabric that is up consists of.",
    "link": "Change links of a fabric that is up: cut, mend or slow them, or let them lose, damage or delay packets.",
    "nccl": "Run the real NCCL over the plugin and over its own sockets, on a GPU or without one.",
    "papers": "Print the numbers of PAPER and ours, with the ratio ours / paper and a verdict.",
    "path-service": "Plan paths for hosts that announce elephants, and inspect a running path service.",
    "pin": "Run PROGRAM with planned source ports for its connections, or show which connections have them.",
    "plan": "Find the best strategy of a training job on every fabric and at every scale of the file JOB.",
    "plugin": "Show where the NCCL net plugin is, what it exports and how to load it.",
    "predict": "Print the path from host SRC to host DST of a RoCEv2 flow with UDP source port PORT.",
    "probe": "Show the paths to each HOST and the source ports that take them, as the routers on the way tell.",
    "report": "Write the report of one result folder again, or compare several result folders in one page.",
    "run": "Run the experiment in the file SPEC and write a report.",
    "schema": "Print the JSON Schema of a kind of YAML file, by which editors complete keys and mark mistakes.",
    "shell": "Bring up the fabric of the file SPEC, without its workload, and give a prompt.",
    "stat": "Show the lanes of running processes: rates, round trips, retransmissions, ports and how they were set.",
    "sweep": "Run the spec in the file SPEC on a model with every combination of values and every seed.",
    "top": "Watch the lanes of running processes and, with --topology or --run, the links they load.",
}
