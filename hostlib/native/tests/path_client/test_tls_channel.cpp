// SPDX-License-Identifier: Apache-2.0
// TLS channels against the server side of OpenSSL, in memory.
#include <doctest/doctest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "certificates.hpp"
#include "path_client/tls_channel.hpp"

namespace paralet::path_client {
namespace {

using test::Authority;

/// The service's side: as a service in Python has it.
class Service {
 public:
  explicit Service(const TlsFiles& files) : context_(SSL_CTX_new(TLS_server_method())) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_num_tickets(context_, 0);
    REQUIRE(SSL_CTX_load_verify_file(context_, files.ca.c_str()) == 1);
    REQUIRE(SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM) == 1);
    session_ = SSL_new(context_);
    received_ = BIO_new(BIO_s_mem());
    to_send_ = BIO_new(BIO_s_mem());
    SSL_set_bio(session_, received_, to_send_);
    SSL_set_accept_state(session_);
  }
  ~Service() {
    SSL_free(session_);
    SSL_CTX_free(context_);
  }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Takes bytes of the host; what it has said is appended to `heard`. False once it has failed.
  bool receive(std::string_view bytes) {
    if (!bytes.empty()) BIO_write(received_, bytes.data(), static_cast<int>(bytes.size()));
    ERR_clear_error();
    std::array<char, 4096> chunk;
    int got = 0;
    while ((got = SSL_read(session_, chunk.data(), chunk.size())) > 0) {
      heard.append(chunk.data(), static_cast<std::size_t>(got));
    }
    return SSL_get_error(session_, got) == SSL_ERROR_WANT_READ;
  }
  void say(std::string_view text) {
    REQUIRE(SSL_write(session_, text.data(), static_cast<int>(text.size())) == static_cast<int>(text.size()));
  }
  void close() { SSL_shutdown(session_); }
  /// Bytes for the host.
  std::string take() {
    std::string out(static_cast<std::size_t>(BIO_pending(to_send_)), '\0');
    if (!out.empty()) BIO_read(to_send_, out.data(), static_cast<int>(out.size()));
    return out;
  }

  std::string heard;

 private:
  SSL_CTX* context_;
  SSL* session_ = nullptr;
  BIO* received_ = nullptr;
  BIO* to_send_ = nullptr;
};

std::string sent(Channel& channel, std::string lines = {}) {
  std::string bytes;
  channel.send(lines, bytes);
  return bytes;
}

/// Both sides after the handshake. The host's first line came with it.
struct Met {
  explicit Met(const Authority& authority, std::size_t piece = SIZE_MAX)
      : service(authority.issue("service", "IP:10.0.0.9")),
        channel(open_tls(authority.issue("host", "IP:10.0.0.1"), "10.0.0.9")) {
    std::string lines = "hello\n";
    for (int round = 0; round < 4; ++round) {
      std::string bytes;
      channel->send(lines, bytes);
      for (std::size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size() - at)) {
        REQUIRE(service.receive(std::string_view(bytes).substr(at, piece)));
      }
      bytes = service.take();
      for (std::size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size() - at)) {
        channel->receive(std::string_view(bytes).substr(at, piece), said);
      }
    }
    CHECK(lines.empty());
    REQUIRE(service.heard == "hello\n");
    service.heard.clear();
  }

  Service service;
  std::unique_ptr<Channel> channel;
  std::string said;
};

std::string refusal(Channel& channel, std::string_view bytes) {
  std::string said;
  try {
    channel.receive(bytes, said);
  } catch (const ChannelError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("lines go both ways, in bytes as they come") {
  const Authority authority;
  Met whole(authority);
  Met met(authority, 1);
  const std::string text = std::string(1 << 20, 'x') + "\n";
  met.service.say(text);
  const std::string bytes = met.service.take();
  met.channel->receive(bytes.substr(0, 100'000), met.said);
  CHECK(met.said.size() < text.size());
  met.channel->receive(bytes.substr(100'000), met.said);
  CHECK(met.said == text);
  CHECK(met.service.receive(sent(*met.channel, text)));
  CHECK(met.service.heard == text);
  CHECK(sent(*met.channel).empty());
}

TEST_CASE("what a service said before it closed is heard") {
  const Authority authority;
  Met met(authority);
  met.service.say("standby\n");
  met.service.close();
  met.channel->receive(met.service.take(), met.said);
  CHECK(met.said == "standby\n");
}

TEST_CASE("a host says nothing to a service whose certificate is for another, and tells it") {
  const Authority authority;
  Service service(authority.issue("service", "IP:10.0.0.9,DNS:elsewhere"));
  const auto channel = open_tls(authority.issue("host", "IP:10.0.0.1"), "10.0.0.8");
  CHECK(service.receive(sent(*channel, "secret\n")));
  CHECK(refusal(*channel, service.take()) == "its certificate is not for 10.0.0.8");
  const std::string alert = sent(*channel, "secret\n");
  CHECK(!alert.empty());
  CHECK(!service.receive(alert));
  CHECK(service.heard.empty());
  CHECK(sent(*channel, "secret\n").empty());
}

TEST_CASE("a service without TLS is told apart") {
  const Authority authority;
  const auto channel = open_tls(authority.issue("host", "IP:10.0.0.1"), "service.example");
  CHECK(!sent(*channel).empty());
  CHECK(refusal(*channel, "{\"type\":\"error\"}\n").starts_with("it does not speak TLS: "));
}

TEST_CASE("damaged bytes end the connection, whichever byte it is") {
  const Authority authority;
  const TlsFiles host = authority.issue("host", "IP:10.0.0.1");
  const TlsFiles files = authority.issue("service", "IP:10.0.0.9");
  std::size_t size = 1;
  for (std::size_t at = 0; at < size; at += 7) {
    CAPTURE(at);
    Service service(files);
    const auto channel = open_tls(host, "10.0.0.9");
    REQUIRE(service.receive(sent(*channel)));
    std::string flight = service.take();
    size = flight.size();  // a byte more or less each time, as ECDSA signatures are
    if (at >= size) break;
    flight[at] = static_cast<char>(flight[at] ^ 0x55);
    // A length that is damaged may have the host wait for more.
    if (refusal(*channel, flight).empty()) CHECK(refusal(*channel, std::string(1 << 16, '\x17')) != "");
    CHECK(service.heard.empty());
  }
  CHECK(size > 500);
}

}  // namespace
}  // namespace paralet::path_client
