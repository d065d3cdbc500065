// SPDX-License-Identifier: Apache-2.0
#include "path_client/channels.hpp"

#include "path_client/tls_channel.hpp"

namespace paralet::path_client {
namespace {

/// Bytes are lines.
class PlainChannel final : public Channel {
 public:
  void receive(std::string_view bytes, std::string& said) override { said += bytes; }
  void send(std::string& lines, std::string& bytes) override {
    if (bytes.empty()) {
      bytes.swap(lines);
      return;
    }
    bytes += lines;
    lines.clear();
  }
};

}  // namespace

OpenChannel channels(const TlsFiles& files) {
  if (!files.any()) {
    return [](const std::string&) { return std::make_unique<PlainChannel>(); };
  }
  check_tls(files);
  return [files](const std::string& host) { return open_tls(files, host); };
}

}  // namespace paralet::path_client
