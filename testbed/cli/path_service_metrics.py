# SPDX-License-Identifier: Apache-2.0
"""A path service's figures as metrics.

Their number depends neither on the hosts nor on the links: about 60 series.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isinf

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sdn.path_service.availability.state import State
from sdn.path_service.observation import Figures


class PathServiceCollector(Collector):
    """Metrics of the figures that `look` gives at each request, from a service of this version and commit.

    `look` raises TimeoutError when the service has no time; then `paralet_path_service_answers` is 0, and all others
    are missing.
    """

    def __init__(self, look: Callable[[], Figures], version: str, commit: str) -> None:
        self._look = look
        self._build = {"version": version, "commit": commit}

    def collect(self) -> Iterator[Metric]:
        try:
            figures = self._look()
        except TimeoutError:
            yield _gauge("answers", "Whether the service had time for this request.", 0)
            return
        yield _gauge("answers", "Whether the service had time for this request.", 1)
        info = InfoMetricFamily("paralet_path_service", "Version and commit, topology and planner.")
        info.add_metric((), {**self._build, "topology": figures.topology, "planner": figures.planner})
        yield info
        yield _gauge("hosts", "Devices that are connected.", figures.hosts)
        yield _gauge("connections", "Connections, also those that have not said hello.", figures.connections)
        yield _gauge("elephants", "Open elephants.", figures.elephants)
        yield _gauge(
            "fixed_elephants",
            "Open elephants of connections that cannot move, such as those of paralet pin.",
            figures.fixed_elephants,
        )
        yield _gauge("commodities", "Pairs of devices that have a path.", figures.commodities)
        yield _gauge("dead_links", "Links between switches that are down.", figures.dead_links)
        yield _gauge("drained_links", "Links between switches that an operator drains.", figures.drained_links)
        yield _gauge("pinned_pairs", "Pairs of devices whose path an operator has pinned.", figures.pinned_pairs)
        worst = figures.worst
        yield _gauge(
            "worst_link_commodities", "Most commodities that one link has in one direction.", worst.planned_commodities
        )
        if worst.measured_ratio is not None:
            yield _gauge(
                "worst_link_measured_ratio",
                "Most that elephants were measured to send over one link, over its rate.",
                worst.measured_ratio,
            )
        yield _counter("announcements", "Announcements of elephants.", figures.counts.get("announced", 0))
        yield _counter(
            "moves",
            "Commodities that got another path, to make room or around dead links.",
            figures.counts.get("moved", 0),
        )
        yield _labelled("events", "Events by kind, as `paralet path-service status` names them.", figures.counts)
        yield _labelled("refusals", "Refused connections and messages, by the code of the error.", figures.refused)
        yield from _availability(figures.availability)
        yield HistogramMetricFamily(
            "paralet_path_service_announcement_seconds",
            "Seconds from when an announcement was read from the socket until it was handled.",
            buckets=[("+Inf" if isinf(bound) else f"{bound:g}", count) for bound, count in figures.latency],
            sum_value=figures.latency_sum_s,
        )


def _availability(state: State | None) -> Iterator[Metric]:
    """Of one of two services."""
    if state is None:
        return
    yield _gauge("leads", "Whether this service answers hosts, as one of two.", state.role == "leading")
    yield _gauge("generation", "Generation of the service that leads, as far as this one knows.", state.generation)
    yield _gauge("followed", "Whether this service leads, and the other one could take over.", state.followed)
    if state.lag_s is not None:
        yield _gauge("lag_seconds", "Since this service or the other one has heard of the leading one.", state.lag_s)
    yield _gauge("lag_changes", "Changes that the service that follows does not have yet.", state.lag_changes)
    yield _counter("takeovers", "How often this service has taken over from the other one.", state.takeovers)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"paralet_path_service_{name}", meaning, value=value)


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"paralet_path_service_{name}", meaning, value=value)


def _labelled(name: str, meaning: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"paralet_path_service_{name}", meaning, labels=("kind",))
    for kind, count in sorted(counts.items()):
        family.add_metric((kind,), count)
    return family
