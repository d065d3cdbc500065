# SPDX-License-Identifier: Apache-2.0
import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int32]
_Longs = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

class Simulation:
    def __init__(
        self,
        *,
        rate_bps: _Longs,
        propagation_s: _Floats,
        head: _Ints,
        is_switch: _Bools,
        switch_bytes: int,
        port_bytes: int,
        mark_bytes: int,
        pause: bool,
        payload_bytes: int,
        header_bytes: int,
        ack_bytes: int,
        receiver: str,
        dctcp: bool,
        window_bdp: float,
        timeout_rtts: float,
        scheme: str,
        flowlet_gap_s: float,
        hold_s: float,
        reroute_rtts: float,
        lanes_per_host: bool,
        seed: int,
    ) -> None: ...
    def set_conditions(self, link: int, propagation_s: float, mark_bytes: int, loss: float) -> None: ...
    def add_channels(self, rows: _Ints, flowlet_bytes: _Longs, back: _Ints) -> None: ...
    def set_groups(self, of: _Ints, begins: _Longs, links: _Ints) -> None: ...
    def add_messages(
        self, channel: _Longs, bytes: _Longs, release_s: _Floats, pause_s: _Floats, milestone: _Bools
    ) -> int: ...
    def move_lanes(self, lanes: _Longs, rows: _Ints) -> None: ...
    def add_waits(self, earlier: _Longs, later: _Longs) -> None: ...
    def advance(self, until_s: float) -> list[int]: ...
    def delivered_s(self) -> _Floats: ...
    def link_counters(self) -> dict[str, _Longs]: ...
    def route_counters(self) -> dict[str, _Longs]: ...
    def totals(self) -> dict[str, int]: ...
    @property
    def now_s(self) -> float: ...
    @property
    def undelivered(self) -> int: ...
    @property
    def events(self) -> int: ...
