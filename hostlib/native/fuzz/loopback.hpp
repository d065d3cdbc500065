// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace paralet::fuzz {

/// Starts the random numbers and the real-time clock again, so that an input finds the same ones each time.
void restart_system();

}  // namespace paralet::fuzz
