# SPDX-License-Identifier: Apache-2.0
"""Property tests have no deadline, because the time of an example depends on the machine more than on the code."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
