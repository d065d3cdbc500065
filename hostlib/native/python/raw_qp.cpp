// SPDX-License-Identifier: Apache-2.0
// raw_qp: the Python binding of a back end and its queue pairs, without Device, for tests against other
// implementations. Only the caller's thread makes progress. Remote addresses of `soft` are offsets into registered
// memory.
#include <poll.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "soft/soft_backend.hpp"
#include "verbs/verbs_backend.hpp"

namespace py = pybind11;
using namespace paralet;  // NOLINT(google-build-using-namespace): this file binds the back ends

namespace {

constexpr Nanos kLongestSleep = 20 * kMillisecond;
constexpr std::uint32_t kPsns = 1U << 24;

IpAddress address_of(const std::string& text) {
  const auto address = parse_address(text);
  if (!address) throw py::value_error("'" + text + "' is not an IP address such as 10.0.0.1 or fd00::1");
  return *address;
}

const char* kind_name(Completion::Kind kind) {
  switch (kind) {
    case Completion::Kind::kSent:
      return "sent";
    case Completion::Kind::kReceivedSend:
      return "send";
    case Completion::Kind::kReceivedWriteImm:
      return "write_imm";
    case Completion::Kind::kQpFailed:
      return "qp_failed";
    case Completion::Kind::kAcksMayBeLost:
      return "asked_again";
    case Completion::Kind::kFenced:
      return "fenced";
  }
  return "unknown";
}

/// A buffer that a back end may read or write during its lifetime. Constructed and destroyed with the GIL held.
class Pinned {
 public:
  Pinned(const py::object& object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { PyBuffer_Release(&view_); }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(view_.len); }

 private:
  Py_buffer view_{};
};

class Nic {
 public:
  explicit Nic(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  [[nodiscard]] const Backend& backend() const { return *backend_; }
  /// Releases the ports while Python still holds this object. No other call is allowed afterwards.
  void close() { backend_.reset(); }

  std::uint32_t register_memory(const py::object& buffer) {
    auto pinned = std::make_unique<Pinned>(buffer, true);
    const std::uint32_t name = backend_->register_memory(pinned->data(), pinned->size());
    const std::uint32_t rkey = backend_->remote_key(name);
    regions_.emplace(rkey, Region{name, std::move(pinned)});
    return rkey;
  }
  void deregister_memory(std::uint32_t rkey) {
    backend_->deregister_memory(regions_.at(rkey).name);
    regions_.erase(rkey);
  }

  /// The value that peers add to an offset into the region.
  [[nodiscard]] std::uint64_t remote_address(std::uint32_t rkey) const {
    return backend_->remote_address(regions_.at(rkey).name);
  }

  /// Creates a QP whose random first PSN is at most `wraps_within` below the wrap-around.
  QpIdentity create_qp(std::uint32_t wraps_within) {
    for (;;) {
      const QpIdentity identity = backend_->create_qp();
      if (kPsns - identity.first_psn <= wraps_within) return identity;
      backend_->destroy_qp(identity.qpn);
    }
  }
  bool connect_qp(std::uint32_t qpn, const std::string& address, std::uint32_t remote_qpn, std::uint32_t first_psn,
                  std::uint32_t path_mtu, std::uint16_t source_port, std::uint16_t udp_port) {
    const bool connected =
        backend_->connect_qp(qpn,
                             {.address = address_of(address),
                              .udp_port = udp_port,
                              .qpn = remote_qpn,
                              .first_psn = first_psn,
                              .path_mtu = path_mtu,
                              .max_ip_id = UINT16_MAX,  // other implementations choose any identification
                              .ece = {}},
                             source_port);
    if (connected) backend_->adopt_qp(qpn);
    return connected;
  }

  std::uint64_t post(WorkKind kind, std::uint32_t qpn, const py::object& buffer, std::uint64_t remote_address,
                     std::uint32_t rkey, std::uint32_t imm) {
    auto pinned = std::make_unique<Pinned>(buffer, false);
    WorkRequest request{.kind = kind,
                        .cookie = ++cookie_,
                        .data = pinned->data(),
                        .length = pinned->size(),
                        .remote_address = remote_address,
                        .rkey = rkey,
                        .imm = imm};
    posted_.emplace(cookie_, std::move(pinned));
    backend_->post(qpn, request);
    return cookie_;
  }
  std::uint64_t post_receive(const py::object& buffer) {
    auto pinned = std::make_unique<Pinned>(buffer, true);
    backend_->post_receive({.data = pinned->data(), .length = pinned->size(), .cookie = ++cookie_});
    posted_.emplace(cookie_, std::move(pinned));
    return cookie_;
  }

  /// Makes progress until a completion or the timeout. Returns the completions.
  py::list progress(double timeout_s) {
    std::vector<Completion> completions;
    const Nanos end = now() + from_seconds(timeout_s);
    {
      const py::gil_scoped_release unlocked;
      while (completions.empty()) {
        const Nanos t = now();
        const bool moved = backend_->progress(t, completions);
        if (backend_->flush(t) || moved) continue;
        if (t >= end) break;
        backend_->settle(t);
        sleep(std::min({end, backend_->deadline(t), t + kLongestSleep}) - t);
      }
    }
    backend_->settle(now());
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    py::list out;
    for (const Completion& c : completions) {
      posted_.erase(c.cookie);
      py::dict row;
      row["kind"] = kind_name(c.kind);
      row["status"] = to_string(c.status);
      row["qpn"] = c.qpn;
      row["cookie"] = c.cookie;
      row["byte_length"] = c.byte_length;
      row["imm"] = c.imm;
      out.append(row);
    }
    return out;
  }

  bool set_port(std::uint32_t qpn, std::uint16_t port) { return backend_->set_port(qpn, port) != PortChange::kRefused; }
  void fail_qp(std::uint32_t qpn) { backend_->fail_qp(qpn); }
  void destroy_qp(std::uint32_t qpn) { backend_->destroy_qp(qpn); }

  [[nodiscard]] py::dict statistics(std::uint32_t qpn) const {
    const QpStatistics s = backend_->statistics(qpn);
    const Discards d = backend_->discards();
    py::dict out;
    out["port"] = s.port;
    out["tx_packets"] = s.counters.tx_packets;
    out["rx_packets"] = s.counters.rx_packets;
    out["retransmits"] = s.counters.retransmits;
    out["timeouts"] = s.counters.timeouts;
    out["naks"] = s.counters.naks;
    out["rnr"] = s.counters.rnr;
    out["duplicates"] = s.counters.duplicates;
    out["out_of_order"] = s.counters.out_of_order;
    out["malformed"] = d.malformed;
    out["icrc"] = d.icrc;
    out["unknown_qp"] = d.unknown_qp;
    out["injected"] = d.injected;
    return out;
  }

 private:
  void sleep(Nanos time) const {
    if (time <= 0) return;
    pollfd descriptor{.fd = backend_->event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&descriptor, 1, static_cast<int>((time + kMillisecond - 1) / kMillisecond));
  }

  std::unique_ptr<Backend> backend_;
  struct Region {
    std::uint32_t name;  ///< of the back end
    std::unique_ptr<Pinned> memory;
  };
  std::map<std::uint32_t, Region> regions_;                  ///< by rkey
  std::map<std::uint64_t, std::unique_ptr<Pinned>> posted_;  ///< until completion
  std::uint64_t cookie_ = 0;
};

}  // namespace

PYBIND11_MODULE(raw_qp, m) {
  m.doc() = "The engine's back ends without the engine, for tests.";

  py::class_<Nic>(m, "Nic")
      .def("close", &Nic::close)
      .def("register_memory", &Nic::register_memory, py::arg("buffer"))
      .def("remote_address", &Nic::remote_address, py::arg("rkey"))
      .def(
          "set_port", [](Nic& nic, std::uint32_t qpn, std::uint16_t port) { return nic.set_port(qpn, port); },
          py::arg("qpn"), py::arg("port"))
      .def("fail_qp", &Nic::fail_qp, py::arg("qpn"))
      .def("deregister_memory", &Nic::deregister_memory, py::arg("rkey"))
      .def(
          "create_qp",
          [](Nic& nic, std::uint32_t wraps_within) {
            const QpIdentity identity = nic.create_qp(wraps_within);
            return py::make_tuple(identity.qpn, identity.first_psn);
          },
          py::arg("wraps_within") = kPsns)
      .def("connect_qp", &Nic::connect_qp, py::arg("qpn"), py::kw_only(), py::arg("address"), py::arg("remote_qpn"),
           py::arg("first_psn"), py::arg("path_mtu"), py::arg("source_port"), py::arg("udp_port") = wire::kRocePort)
      .def(
          "write",
          [](Nic& nic, std::uint32_t qpn, const py::object& buffer, std::uint64_t address, std::uint32_t rkey,
             std::optional<std::uint32_t> imm) {
            return nic.post(imm ? WorkKind::kWriteImm : WorkKind::kWrite, qpn, buffer, address, rkey, imm.value_or(0));
          },
          py::arg("qpn"), py::arg("buffer"), py::arg("address"), py::arg("rkey"), py::arg("imm") = py::none())
      .def(
          "send",
          [](Nic& nic, std::uint32_t qpn, const py::object& buffer) {
            return nic.post(WorkKind::kSend, qpn, buffer, 0, 0, 0);
          },
          py::arg("qpn"), py::arg("buffer"))
      .def("post_receive", &Nic::post_receive, py::arg("buffer"))
      .def("progress", &Nic::progress, py::arg("timeout_s"))
      .def("destroy_qp", &Nic::destroy_qp, py::arg("qpn"))
      .def("statistics", &Nic::statistics, py::arg("qpn"))
      .def_property_readonly("udp_port", [](const Nic& nic) { return nic.backend().udp_port(); })
      .def_property_readonly("max_path_mtu", [](const Nic& nic) { return nic.backend().max_path_mtu(); })
      .def_property_readonly("port_method", [](const Nic& nic) { return to_string(nic.backend().port_method()); });

  m.def(
      "soft",
      [](const std::string& address, double drop, std::uint64_t seed, double min_timeout_s, double retry_time_s) {
        SoftOptions options;
        options.address = address_of(address);
        options.min_timeout = from_seconds(min_timeout_s);
        options.retry_time = from_seconds(retry_time_s);
        options.faults = {.drop = drop, .seed = seed};
        return std::make_unique<Nic>(std::make_unique<SoftBackend>(options));
      },
      py::arg("address"), py::kw_only(), py::arg("drop") = 0.0, py::arg("seed") = 0, py::arg("min_timeout_s") = 0.067,
      py::arg("retry_time_s") = 30.0);

  m.def(
      "verbs",
      [](const std::string& address, const std::string& device, double min_timeout_s) {
        VerbsOptions options;
        options.address = address_of(address);
        options.device = device;
        options.min_timeout = from_seconds(min_timeout_s);
        return std::make_unique<Nic>(open_verbs(options));
      },
      py::arg("address"), py::kw_only(), py::arg("device") = "", py::arg("min_timeout_s") = 0.067);
  m.def("verbs_ports", [] {
    py::list out;
    for (const VerbsPort& port : verbs_ports()) {
      out.append(py::make_tuple(port.device, port.port, port.active, port.path_mtu, port.gid_index,
                                format_address(port.address)));
    }
    return out;
  });
  py::register_local_exception<DeviceError>(m, "DeviceError");  // hostlib._engine has one too
}
