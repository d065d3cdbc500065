// SPDX-License-Identifier: Apache-2.0
#include "prober/queued_error.hpp"

// clang-format off
#include <sys/socket.h>
#include <ctime>  // of linux/errqueue.h, which does not include what it needs
#include <linux/errqueue.h>
// clang-format on
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>

#include <algorithm>
#include <cstring>

#include "wire/wire.hpp"

namespace paralet::prober {
namespace {

/// The head of a cmsghdr, which ends in an array of no length.
struct ControlHead {
  std::size_t length = 0;
  int level = 0;
  int type = 0;
};
static_assert(sizeof(ControlHead) == sizeof(cmsghdr));

/// The bytes at `at` as a T; nothing beyond the end.
template <typename T>
std::optional<T> value_at(std::span<const std::byte> bytes, std::size_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::optional<IpAddress> sender_of(std::span<const std::byte> offender) {
  const auto family = value_at<sa_family_t>(offender, 0);
  if (family == AF_INET) {
    if (const auto address = value_at<sockaddr_in>(offender, 0)) return IpAddress(ntohl(address->sin_addr.s_addr));
  } else if (family == AF_INET6) {
    if (const auto address = value_at<sockaddr_in6>(offender, 0)) {
      IpAddress::Bytes bytes{};
      std::memcpy(bytes.data(), &address->sin6_addr, bytes.size());
      return IpAddress(bytes);
    }
  }
  return std::nullopt;
}

ErrorKind kind_of(const sock_extended_err& error) {
  switch (error.ee_origin) {
    case SO_EE_ORIGIN_LOCAL:
      return ErrorKind::kLocal;
    case SO_EE_ORIGIN_ICMP:
      if (error.ee_type == ICMP_TIME_EXCEEDED && error.ee_code == ICMP_EXC_TTL) return ErrorKind::kTimeExceeded;
      // A packet that is too long has not been refused: a probe is shorter than any MTU.
      if (error.ee_type == ICMP_DEST_UNREACH && error.ee_code != ICMP_FRAG_NEEDED) return ErrorKind::kUnreachable;
      return ErrorKind::kOther;
    case SO_EE_ORIGIN_ICMP6:
      if (error.ee_type == ICMP6_TIME_EXCEEDED && error.ee_code == ICMP6_TIME_EXCEED_TRANSIT) {
        return ErrorKind::kTimeExceeded;
      }
      return error.ee_type == ICMP6_DST_UNREACH ? ErrorKind::kUnreachable : ErrorKind::kOther;
    default:
      return ErrorKind::kOther;
  }
}

}  // namespace

std::optional<QueuedError> parse_queued_error(std::span<const std::byte> control) {
  while (const auto head = value_at<ControlHead>(control, 0)) {
    if (head->length < CMSG_LEN(0) || head->length > control.size()) return std::nullopt;
    const auto data = control.first(head->length).subspan(CMSG_LEN(0));
    const bool ipv4 = head->level == IPPROTO_IP && head->type == IP_RECVERR;
    const bool ipv6 = head->level == IPPROTO_IPV6 && head->type == IPV6_RECVERR;
    if (ipv4 || ipv6) {
      const auto error = value_at<sock_extended_err>(data, 0);
      if (!error) return std::nullopt;
      QueuedError out{.kind = kind_of(*error), .number = static_cast<int>(error->ee_errno), .sender = {}};
      if (out.kind == ErrorKind::kLocal) return out;
      const auto sender = sender_of(data.subspan(sizeof *error));
      if (!sender) return std::nullopt;
      out.sender = *sender;
      return out;
    }
    control = control.subspan(std::min(CMSG_ALIGN(head->length), control.size()));
  }
  return std::nullopt;
}

bool quotes(const Target& target, std::uint16_t source_port, std::span<const std::byte> payload,
            const SocketAddress& destination, std::span<const std::byte> quoted) {
  if (destination.address() != target.to || destination.port() != target.destination_port) return false;
  if (target.protocol == Protocol::kTcp) {
    return quoted.size() < 4 ||
           (wire::get_u16(quoted.data()) == source_port && wire::get_u16(quoted.data() + 2) == target.destination_port);
  }
  const std::size_t common = std::min(quoted.size(), payload.size());
  return std::equal(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(common), quoted.begin());
}

}  // namespace paralet::prober
