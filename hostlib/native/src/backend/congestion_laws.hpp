// SPDX-License-Identifier: Apache-2.0
// Names of the laws of congestion control, for the table of options. The back end soft has the laws and defines this
// list (soft/congestion_control.cpp), so that a new law is named in one place.
#pragma once

#include <string>
#include <vector>

namespace paralet {

/// The default first.
const std::vector<std::string>& congestion_laws();

}  // namespace paralet
