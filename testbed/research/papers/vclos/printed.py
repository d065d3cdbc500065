# SPDX-License-Identifier: Apache-2.0
"""The numbers of the paper's tables 2 and 4 to 7. None stands for a cell that our copy of the paper lacks."""

GAPS_S = (100, 110, 120, 130, 140)
"""Lambda, the mean time between arrivals, in table 5."""

TABLE_2 = {  # lambda -> failed placements by lack of GPUs, by lack of links
    "vClos": {100: (1311, 264), 110: (988, 250), 120: (878, 218), 130: (726, 145)},
    "OCS-vClos": {100: (1180, 172), 110: (1047, 161), 120: (920, 129), 130: (705, 98)},
}

TABLE_4 = {  # mean JRT and JWT in seconds
    "ECMP": (95.12, 72.64),
    "Redundance": (86.23, 60.73),
    "SR": (76.92, 50.19),
    "vClos": (74.72, 45.56),
}

TABLE_5 = {  # mean JCT in seconds by `GAPS_S`
    "Best": (7514.3, 6131.8, 5053.0, 4340.7, 3986.5),
    "OCS-vClos": (7800.5, 6368.0, 5229.9, 4491.5, 4025.4),
    "vClos": (9799.6, 6981.5, 5550.6, 4710.4, 4105.1),
    "SR": (10083.5, 7449.6, 6228.6, 4955.6, 4209.3),
    "Balanced": (12267.1, 8622.5, 7105.4, 5436.9, 4764.5),
    "ECMP": (35032.9, 25055.6, 23545.4, 13118.7, 11395.6),
    "OCS-Relax": (24313.3, 13768.4, 11291.4, 7586.6, 5917.9),
}

TABLE_6: dict[str, dict[str, float | None]] = {  # mean JCT in seconds; the row of FIFO is that of table 5 at 120 s
    "EDF": {
        "OCS-vClos": None,
        "vClos": 4401.4,
        "Best": 4176.5,
        "SR": 4685.5,
        "Balanced": 5020.9,
        "ECMP": 7658.6,
    },
    "FF": {
        "OCS-vClos": 4081.6,
        "vClos": 4137.2,
        "Best": 4029.9,
        "SR": 4250.5,
        "Balanced": 4607.8,
        "ECMP": 6667.6,
    },
}

TABLE_7 = {  # mean JWT and JCT in seconds
    "OCS-vClos": (8101.9, 11958.1),
    "vClos": (8102.8, 11958.9),
    "Best": (8101.9, 11958.1),
    "SR": (8115.7, 11973.7),
    "Balanced": (8160.2, 12021.8),
    "ECMP": (17839.8, 22808.7),
}
