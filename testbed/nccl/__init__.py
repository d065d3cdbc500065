# SPDX-License-Identifier: Apache-2.0
"""The real NCCL over the plugin, beside NCCL's own Socket transport: `python -m testbed.nccl`.

Ranks run on a GPU or on the CPU device (`cpu_device`). On a GPU nothing is needed but Python and the two libraries
`libnccl` and `libcudart`, so that the folder can be carried to a machine that reaches no registry (`--bundle`).
docs/nccl.md says how to run it and what it proves.
"""
