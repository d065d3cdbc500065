// SPDX-License-Identifier: Apache-2.0
// What is between the lines of a session and the bytes on its socket: nothing, or TLS. No I/O.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace paralet::path_client {

/// A connection cannot go on: one sentence, without a full stop, of which the service is "it".
struct ChannelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  /// Takes bytes from the socket, and appends what the service has said to `said`. Throws ChannelError; what `send`
  /// returns then tells the service why.
  virtual void receive(std::string_view bytes, std::string& said) = 0;
  /// Takes what may be sent now of `lines`, and appends bytes for the socket to `bytes`. Throws ChannelError.
  virtual void send(std::string& lines, std::string& bytes) = 0;
};

/// The files of mutual TLS, in PEM format.
struct TlsFiles {
  std::string ca;           ///< certificates of the CAs from one of which the service's certificate is
  std::string certificate;  ///< this host's, followed by those of CAs in between, if any
  std::string key;          ///< of `certificate`; its owner alone may access it
  [[nodiscard]] bool any() const { return !ca.empty() || !certificate.empty() || !key.empty(); }
  [[nodiscard]] bool all() const { return !ca.empty() && !certificate.empty() && !key.empty(); }
};

}  // namespace paralet::path_client
