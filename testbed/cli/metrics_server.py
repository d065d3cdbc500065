# SPDX-License-Identifier: Apache-2.0
"""Serves metrics over HTTP in Prometheus' text format or OpenMetrics, whichever the one who asks prefers."""

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from testbed.cli.own_hosts import is_for


def serve(address: str, port: int, collector: Collector) -> int:
    """Serve what `collector` collects at each request, at http://address:port/metrics.

    A background thread serves until the process ends, only requests that are for this server (`own_hosts`). Returns the
    port, which differs where `port` is 0. Raises OSError when the address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    metrics, for_this_host = make_wsgi_app(registry), is_for(address)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if for_this_host(environ.get("HTTP_HOST", "")):
            lines: Iterable[bytes] = metrics(environ, start_response)
            return lines
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"The request names another host\n"]

    server = make_server(address, port, answer, ThreadingWSGIServer, _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class _Handler(WSGIRequestHandler):
    timeout = 30.0  # seconds for a request

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
