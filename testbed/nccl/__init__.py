# SPDX-License-Identifier: Apache-2.0
"""The real NCCL over the plugin on a machine with a GPU, beside NCCL's own Socket transport: `python -m testbed.nccl`.

Needs nothing but Python and the two libraries `libnccl` and `libcudart`, so that the folder can be carried to a machine
that reaches no registry (`--bundle`). docs/nccl.md says how to run it and what it proves.
"""
