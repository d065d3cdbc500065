// SPDX-License-Identifier: Apache-2.0
// hostlib._engine: the Python binding of the native engine. Devices are here; messages.cpp, collectives.cpp,
// settings.cpp, prober.cpp and counters.cpp have the rest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "engine/device.hpp"
#include "engine/flowlet.hpp"
#include "python/binding.hpp"
#include "python/messages.hpp"
#include "wire/icrc.hpp"

namespace py = pybind11;
using namespace paralet;  // NOLINT(google-build-using-namespace): this file binds the whole engine

PYBIND11_MODULE(_engine, m) {
  m.doc() = "The native transport engine. Use it through hostlib.";

  // Never destroyed: static destructors run after the end of the interpreter.
  static auto& transport_error = *new py::exception<TransportError>(m, "TransportError");
  static auto& device_error = *new py::exception<DeviceError>(m, "DeviceError", transport_error);
  static auto& connection_closed = *new py::exception<ConnectionClosed>(m, "ConnectionClosed", transport_error);
  for (auto* e : {static_cast<py::object*>(&transport_error), static_cast<py::object*>(&device_error),
                  static_cast<py::object*>(&connection_closed)}) {
    e->attr("__module__") = "hostlib";
  }
  // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11's signature
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const ConnectionClosed& e) {
      py::set_error(connection_closed, e.what());
    } catch (const DeviceError& e) {
      py::set_error(device_error, e.what());
    } catch (const TransportError& e) {
      py::set_error(transport_error, e.what());
    }
  });

  bind_messages(m);

  py::class_<Device, std::shared_ptr<Device>>(m, "Device")
      .def(py::init([](const std::string& address, const py::dict& given) {
             return std::shared_ptr<Device>(new Device(device_options(address, given)), DeleteInOwner{});
           }),
           py::arg("address"), py::arg("options"))
      .def("close",
           [](Device& d) {
             const py::gil_scoped_release unlocked;
             d.close();
           })
      .def("listen",
           [](const std::shared_ptr<Device>& d) {
             std::shared_ptr<Listener> listener;
             {
               const py::gil_scoped_release unlocked;
               listener = d->listen();
             }
             return std::make_unique<PyListener>(d, listener);
           })
      .def(
          "connect",
          [](const std::shared_ptr<Device>& d, const py::bytes& handle, std::optional<double> timeout_s) {
            const std::string bytes = handle;
            std::shared_ptr<Connection> connection;
            {
              const py::gil_scoped_release unlocked;
              connection = d->connect(std::as_bytes(std::span(bytes)));
            }
            const auto ready = [&] { return connection->state != Connection::State::kConnecting; };
            auto out = std::make_unique<PyConnection>(d, connection);
            if (!wait_for(*d, ready, to_nanos(timeout_s))) {
              out->close();
              const std::string shortage = descriptor_shortage();
              raise_timeout("the peer did not answer within timeout_s" +
                            (shortage.empty() ? "; its process may be stopped, or may open no more files (`ulimit -n`)"
                                              : shortage));
            }
            if (connection->failure != Failure::kNone) raise(connection->failure, connection->error);
            return out;
          },
          py::arg("handle"), py::arg("timeout_s"))
      .def("register",
           [](const std::shared_ptr<Device>& d, const py::object& buffer) {
             auto registration = std::make_shared<PyRegion::Registration>();
             auto view = std::make_unique<BufferView>(buffer, true);
             {
               const py::gil_scoped_release unlocked;
               registration->rkey = d->register_memory(view->data(), view->size());
             }
             const std::uint64_t length = view->size();
             registration->device = d;
             registration->view = std::move(view);
             return PyRegion{registration, 0, length};
           })
      .def(
          "set_port",
          [](Device& d, const std::string& peer, unsigned lane, std::uint16_t port) {
            const IpAddress address = address_of(peer);
            const py::gil_scoped_release unlocked;
            return d.set_port(address, lane, port);
          },
          py::arg("peer"), py::arg("lane"), py::arg("port"))
      .def("counters", &counters_of)
      .def_property_readonly("path_mtu", &Device::path_mtu)
      .def_property_readonly("udp_port", &Device::udp_port)
      .def_property_readonly("inherited", &Device::inherited);

  bind_collectives(m);
  bind_counters(m);
  bind_settings(m);
  bind_prober(m);

  m.def("slowdown", &slowdown, py::arg("m"), py::arg("hosts"));
  m.def("lanes_for", &lanes_for, py::arg("slowdown"), py::arg("hosts"));
  m.def("flowlet_bytes", &flowlet_bytes, py::arg("bdp_bytes"), py::arg("m"), py::arg("path_mtu"));
  m.def("interfaces", [] {
    py::list out;
    for (const Interface& i : interfaces()) out.append(py::make_tuple(i.name, format_address(i.address), i.mtu_bytes));
    return out;
  });
  m.def(
      "icrc",
      [](const std::string& src, const std::string& dst, std::uint16_t sport, std::uint16_t dport, std::uint16_t ip_id,
         const py::bytes& transport) {
        const std::string bytes = transport;
        if (bytes.size() < 12) throw py::value_error("transport must have at least the 12 bytes of a BTH");
        return icrc({address_of(src), address_of(dst), sport, dport}, ip_id, std::as_bytes(std::span(bytes)).first(12),
                    std::as_bytes(std::span(bytes)).subspan(12));
      },
      py::kw_only(), py::arg("src"), py::arg("dst"), py::arg("src_port"), py::arg("dst_port"), py::arg("ip_id"),
      py::arg("transport"));
}
