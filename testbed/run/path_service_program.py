# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.run.path_service_program`: the path service of a run, a process of its own in the sandbox.

It is `paralet path-service run` with what a run needs: forecasts, and the hash of the run's switches.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from netmodel import EcmpHash, LinuxCrcHash, LinuxL4Hash, OvsHash, Topology, load_topology
from sdn.measured.router_names import names_of
from sdn.openflow.source_rules import SourcePortRules
from sdn.path_service.admin import AdminError, admin_socket
from sdn.path_service.run import Place, serve
from sdn.path_service.service import Options
from sdn.path_service.token import made_or_read
from sdn.planners import DEFAULT_PLANNER, PLANNERS
from testbed.errors import TestbedError
from testbed.run.failures import exit_status


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Serves until SIGINT or SIGTERM. Returns 0, or another exit status after an error."""
    parser = argparse.ArgumentParser(prog="python -m testbed.run.path_service_program", description=__doc__)
    parser.add_argument("--topology", type=Path, required=True, help="topology file")
    parser.add_argument("--planner", choices=list(PLANNERS), default=DEFAULT_PLANNER)
    parser.add_argument("--rates", action="store_true", help="limit every elephant to its max-min fair rate")
    parser.add_argument("--rules", action="store_true", help="switches have rules on source ports")
    parser.add_argument("--routers", choices=["linux", "crc32"], help="switches are routers with this hash")
    parser.add_argument("--hash-offset", action="append", default=[], help="ROLE=BITS: of the hash crc32")
    parser.add_argument(
        "--measured", choices=["links", "loopbacks"], help="hosts probe; routers answer by these addresses"
    )
    parser.add_argument("--event-log", type=Path, help="file that gets all events")
    parser.add_argument("--listen", required=True, metavar="ADDR:PORT", help="where hosts connect")
    parser.add_argument("--token-file", type=Path, required=True, help="file with the token; made if it is missing")
    arguments = parser.parse_args(argv)

    def work() -> None:
        topology = load_topology(arguments.topology)
        address, _, port = arguments.listen.rpartition(":")
        place = Place(address, int(port), admin_socket(arguments.token_file))
        options = Options(arguments.planner, forecast=True, rates=arguments.rates)
        try:
            ecmp_hash, routers = _hash_of(topology, arguments), None
            if arguments.measured is not None:
                routers = names_of(topology, unnumbered=arguments.measured == "loopbacks")
            token = made_or_read(arguments.token_file)
            missing = serve(
                topology, options, token, place, ecmp_hash=ecmp_hash, routers=routers, event_log=arguments.event_log
            )
        except (AdminError, ValueError) as error:
            raise TestbedError(str(error)) from error
        if missing:
            raise TestbedError(f"{arguments.event_log} lacks {missing} events: its disk was full or too slow")

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    return exit_status(work)


def _hash_of(topology: Topology, arguments: argparse.Namespace) -> EcmpHash | None:
    """The hash of the switches; None where hosts measure what it does. Raises ValueError where they cannot have it."""
    if arguments.measured is not None:
        return None
    if arguments.routers == "crc32":
        offsets = (one.partition("=") for one in arguments.hash_offset)
        return LinuxCrcHash.of(topology, {role: int(bits) for role, _, bits in offsets})
    if arguments.routers is not None:
        return LinuxL4Hash()
    return SourcePortRules.of(topology) if arguments.rules else OvsHash()


if __name__ == "__main__":
    sys.exit(main())
