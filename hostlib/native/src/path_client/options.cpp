// SPDX-License-Identifier: Apache-2.0
#include "path_client/options.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "base/socket_address.hpp"

namespace paralet::path_client {
namespace {

constexpr std::size_t kMaxToken = 256;
constexpr std::size_t kMaxJob = 64;
constexpr std::size_t kMaxServices = 8;

bool is_word(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

struct HostAndPort {
  std::string host;
  std::uint16_t port = 0;
};

HostAndPort parse_service(const std::string& service) {
  const std::size_t colon = service.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string::npos) {
    const char* end = service.data() + service.size();
    const auto [rest, error] = std::from_chars(service.data() + colon + 1, end, port);
    if (error != std::errc() || rest != end) port = 0;
  }
  std::string host = service.substr(0, colon == std::string::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port == 0 || (host.find_first_of(":[]") != std::string::npos) != bracketed) {
    throw DeviceError("'" + service +
                      "' is not where a path service listens: write HOST:PORT, as in 10.0.0.9:4792 or [fd00::9]:4792");
  }
  return {.host = std::move(host), .port = port};
}

std::vector<HostAndPort> parse_services(const std::string& services) {
  std::vector<HostAndPort> out;
  for (std::size_t begin = 0; begin <= services.size();) {
    const std::size_t end = std::min(services.find(',', begin), services.size());
    out.push_back(parse_service(services.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (out.size() > kMaxServices) throw DeviceError("a path service has at most 8 addresses");
  return out;
}

Address resolve(const HostAndPort& service) {
  const auto& [host, port] = service;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &raw);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  if (error != 0 || !found) {
    throw DeviceError("the path service's host '" + host + "' has no address: " + ::gai_strerror(error));
  }
  return {.host = host, .address = SocketAddress(found->ai_addr).address(), .port = port};
}

}  // namespace

void check_service(const std::string& service) { static_cast<void>(parse_services(service)); }

std::vector<Address> resolve(const std::string& service) {
  std::vector<Address> out;
  for (const HostAndPort& one : parse_services(service)) out.push_back(resolve(one));
  return out;
}

std::string read_token(const std::string& path) {
  const auto refuse = [&path](const std::string& why) { throw DeviceError("the token file " + path + " " + why); };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0)
    refuse(std::string("cannot be read: ") + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) refuse("is open to others: make it your own with chmod 600");
  std::array<char, kMaxToken + 2> bytes{};
  const ssize_t got = ::read(file.get(), bytes.data(), bytes.size());
  if (got < 0) refuse(std::string("cannot be read: ") + std::strerror(errno));
  std::string token(bytes.data(), static_cast<std::size_t>(got));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.empty() || token.size() > kMaxToken || !is_word(token)) {
    refuse("holds no token: one line of 1 to 256 printable characters without blanks");
  }
  return token;
}

bool is_job(const std::string& text) { return text.size() <= kMaxJob && is_word(text); }

void check(const Options& options) {
  if (options.token.empty() || options.token.size() > kMaxToken || !is_word(options.token)) {
    throw DeviceError("the path service's token must be 1 to 256 printable characters without blanks");
  }
  if (options.tls.any() && !options.tls.all()) {
    throw DeviceError("TLS to a path service needs three files: CA certificates, a certificate and its key");
  }
  if (!is_job(options.job)) {
    throw DeviceError("the job's name must be at most 64 printable ASCII characters without blanks");
  }
  if (options.elephant_bytes == 0) throw DeviceError("elephant_bytes must be at least 1");
  if (!(options.probe_rate >= 0)) throw DeviceError("the rate of probes must be at least 0");
  if (!(options.thresholds.rtt_ratio >= 1)) throw DeviceError("the round trips' ratio must be at least 1");
  if (!(options.thresholds.loss > 0)) throw DeviceError("the loss to leave a path at must be above 0");
  if (options.reconnect_least <= 0 || options.reconnect_most < options.reconnect_least) {
    throw DeviceError("the bounds of the reconnect delay must be positive and in order");
  }
}

}  // namespace paralet::path_client
