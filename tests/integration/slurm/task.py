# SPDX-License-Identifier: Apache-2.0
"""A task of a job: the first one listens, the second one connects to it and says by which source port.

It also says the name of its job, as the agent of `paralet pin` knows it.
"""

import json
import os
import socket
import time

from paralet_pin.check import agent_of, ask

SERVER = ("10.9.0.1", 7000 + int(os.environ["SLURM_JOB_ID"]))

if os.environ["SLURM_PROCID"] == "0":
    with socket.create_server(SERVER) as listener:
        listener.accept()[0].close()
else:
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(SERVER) == 0:
                port = connection.getsockname()[1]
                break
        time.sleep(0.05)
    print(json.dumps({"port": port, "job": ask(agent_of(os.getpid())).job}))
