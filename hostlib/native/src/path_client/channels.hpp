// SPDX-License-Identifier: Apache-2.0
// Which kind of channel a client's connections have.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "path_client/channel.hpp"

namespace paralet::path_client {

/// Makes the channel of a new connection to the service at a host, which is a name or an IP address. Throws
/// DeviceError.
using OpenChannel = std::function<std::unique_ptr<Channel>(const std::string& host)>;

/// Channels with TLS where there are files, which are read for each of them: a renewed certificate is for the next
/// connection. Throws DeviceError when the files cannot be used now, or there is no OpenSSL.
OpenChannel channels(const TlsFiles& files);

}  // namespace paralet::path_client
