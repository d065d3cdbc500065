# SPDX-License-Identifier: Apache-2.0
"""Forecasts: the next phase of a job, and when its elephants end.

Pure: no clock, no thread, no socket; every event has its time. docs/path-service.md says how the path service uses
forecasts.
"""

from sdn.forecast.ends import ends_s
from sdn.forecast.phases import Announced, Expected, Forecast, HitRate, phases

__all__ = ["Announced", "Expected", "Forecast", "HitRate", "ends_s", "phases"]
