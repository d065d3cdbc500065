# SPDX-License-Identifier: Apache-2.0
"""Files of other projects as task graphs, and task graphs as files of theirs.

`formats` names the formats that a spec can read. Every reader checks each length and number that it reads, and refuses
a bad file with a ValueError: one sentence with file and line, or byte.
"""
