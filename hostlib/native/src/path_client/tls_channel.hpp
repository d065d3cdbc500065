// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 with certificates on both sides, by OpenSSL. The bytes go through memory, so OpenSSL touches no socket.
#pragma once

#include <memory>
#include <string>

#include "path_client/channel.hpp"

namespace paralet::path_client {

/// Throws DeviceError when the files cannot be used: one sentence.
void check_tls(const TlsFiles& files);

/// A channel to the service at a host, for which the service's certificate must be. Throws DeviceError as `check_tls`.
std::unique_ptr<Channel> open_tls(const TlsFiles& files, const std::string& host);

}  // namespace paralet::path_client
