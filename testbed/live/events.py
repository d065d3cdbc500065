# SPDX-License-Identifier: Apache-2.0
"""What has happened between two surveys of the live counters, as sentences."""

from collections.abc import Callable, Iterator

from hostlib.stats import DeviceSnapshot, Survey


def events(before: Survey, now: Survey, exists: Callable[[int], bool] = lambda pid: True) -> Iterator[str]:
    """A sentence for every process that started or ended, and for the moves, timeouts and path services of devices.

    `exists` tells whether a process that has no devices any more still runs.
    """
    was = {process.pid: process for process in before.processes}
    still = {process.pid for process in now.processes}
    for process in now.processes:
        earlier = was.get(process.pid)
        if earlier is None:
            yield f"process {process.pid} opened its first device"
            continue
        devices = {device.guid: device for device in earlier.devices}
        for device in process.devices:
            if device.guid in devices:
                yield from _of_device(devices[device.guid], device)
    for pid in sorted(was.keys() - still):
        if exists(pid):
            yield f"process {pid} has closed its devices"
            continue
        open_ = sum(device.connections for device in was[pid].devices)
        # A process that ends in order closes its connections first, unless it did so since the last look.
        yield f"process {pid} has ended" + (f", with {open_} connections open at the last look" if open_ else "")


def _of_device(before: DeviceSnapshot, now: DeviceSnapshot) -> Iterator[str]:
    earlier = {(lane.peer, lane.lane): lane for lane in before.lanes}
    for lane in now.lanes:
        then = earlier.get((lane.peer, lane.lane))
        if then is None:
            continue
        where = f"{now.address} lane {lane.lane} to {lane.peer}"
        if lane.port != then.port:
            yield f"{where} moved from port {then.port} to {lane.port}"
        if lane.qpn == then.qpn and lane.timeouts > then.timeouts:
            yield f"{where} timed out"
    if now.messages.failed > before.messages.failed:
        yield f"{now.address}: {now.messages.failed - before.messages.failed} messages failed"
    if before.path_client and now.path_client and before.path_client.connected != now.path_client.connected:
        yield f"{now.address} {'reached' if now.path_client.connected else 'lost'} the path service"
    if before.path_client and now.path_client:
        planned = now.path_client.assigns - before.path_client.assigns
        if planned > 0:
            yield f"{now.address} took {planned} {'plan' if planned == 1 else 'plans'} of the path service"
        left = now.path_client.reverted - before.path_client.reverted
        if left > 0:
            yield f"{now.address}: lanes left their planned ports {left} {'time' if left == 1 else 'times'}"
