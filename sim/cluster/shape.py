# SPDX-License-Identifier: Apache-2.0
"""The dimensions of a cluster's fabric, and how its links are numbered.

A leaf-spine is one pod. With several pods its spines are the aggs of each pod, and agg a of every pod is linked to the
same `cores`, those of group a (`netmodel.clos`). All links are as fast as a NIC. Planes are equal fabrics without a
link between them, and every GPU has a NIC in each.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a leaf-spine, or of a Clos of several pods.

    In each plane links have the numbers, in this order: up from leaf l to spine s of its pod, l * S + s; the same down;
    up from agg s of pod p to core c of its group, (p * S + s) * C + c; the same down. Each direction counts as one.
    """

    leaves: int
    """Of all pods together."""
    spines: int
    """Of a pod: its aggs, where there are several."""
    servers_per_leaf: int
    gpus_per_server: int
    pods: int = 1
    cores: int = 0
    """Of a group. None where there is one pod."""
    planes: int = 1

    @property
    def leaves_per_pod(self) -> int:
        """The number of leaves of each pod."""
        return self.leaves // self.pods

    @property
    def gpus_per_leaf(self) -> int:
        """The number of GPUs under each leaf."""
        return self.servers_per_leaf * self.gpus_per_server

    @property
    def gpus(self) -> int:
        """The number of GPUs, each of which has a NIC in each plane."""
        return self.leaves * self.gpus_per_leaf

    @property
    def leaf_links(self) -> int:
        """The number of links from leaves up, in a plane."""
        return self.leaves * self.spines

    @property
    def core_links(self) -> int:
        """The number of links from aggs up, in a plane."""
        return self.pods * self.spines * self.cores

    @property
    def plane_links(self) -> int:
        """The number of links between switches of a plane."""
        return 2 * (self.leaf_links + self.core_links)

    @property
    def links(self) -> int:
        """The number of links between switches."""
        return self.planes * self.plane_links

    def lacks_links_for_all(self) -> str | None:
        """What is too few for every GPU to send to another leaf by links of its own; None where nothing is."""
        if self.gpus_per_leaf > self.spines:
            what = "spines" if self.pods == 1 else "aggs in its pod"
            return f"{self.gpus_per_leaf} GPUs of a leaf need as many {what}"
        if self.pods > 1 and self.leaves_per_pod > self.cores:
            return f"{self.leaves_per_pod} leaves of a pod need as many cores of each agg"
        return None

    def pods_of(self, leaves: NDArray[np.intp]) -> NDArray[np.intp]:
        """The pod of each leaf."""
        found: NDArray[np.intp] = leaves // self.leaves_per_pod
        return found

    def links_between(
        self, leaf: NDArray[np.intp], far_leaf: NDArray[np.intp], spine: NDArray[np.intp], core: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """The links of paths between two leaves each, in the first plane. All arrays have one shape.

        The result has one dimension more: the link up and the link down, and with several pods also the link from the
        agg to core `core` of its group and the link back, which are -1 for two leaves of one pod.
        """
        links = [leaf * self.spines + spine, self.leaf_links + far_leaf * self.spines + spine]
        if self.cores:
            pod, far_pod = self.pods_of(leaf), self.pods_of(far_leaf)
            up, down = ((which * self.spines + spine) * self.cores + core for which in (pod, far_pod))
            first = 2 * self.leaf_links
            links += [np.where(pod == far_pod, -1, link) for link in (first + up, first + self.core_links + down)]
        return np.stack(links, axis=-1)
