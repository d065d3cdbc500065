// SPDX-License-Identifier: Apache-2.0
// hostlib._engine: the Python binding of the native engine. Buffers stay exported, and so cannot move, until the engine
// has finished with them. Waiting releases the GIL and responds to Ctrl-C.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/interfaces.hpp"
#include "base/limits.hpp"
#include "base/signal.hpp"
#include "engine/device.hpp"
#include "engine/flowlet.hpp"
#include "engine/options.hpp"
#include "python/binding.hpp"
#include "wire/icrc.hpp"

namespace py = pybind11;
using namespace paralet;  // NOLINT(google-build-using-namespace): this file binds the whole engine

namespace {

constexpr Nanos kCloseTime = 15 * kSecond;

/// An exported Python buffer. Constructed and destroyed with the GIL held.
class BufferView {
 public:
  BufferView(const py::object& object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() { PyBuffer_Release(&view_); }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(view_.len); }

 private:
  Py_buffer view_{};
};

/// Waits without the GIL, in slices, so that signal handlers run. Returns false on timeout.
template <typename Predicate>
bool wait_for(Device& device, Predicate ready, std::optional<Nanos> timeout) {
  if (ready()) return true;
  const Nanos start = now();
  for (;;) {
    const Nanos waited = now() - start;
    const Nanos rest = timeout ? *timeout - waited : kSignalCheck;
    bool done = false;
    {
      const py::gil_scoped_release unlocked;
      done = device.wait(ready, std::clamp<Nanos>(rest, 0, kSignalCheck));
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (timeout && rest <= 0) return false;
  }
}

struct PyRegion {
  struct Registration {
    std::shared_ptr<Device> device;
    std::unique_ptr<BufferView> view;
    std::uint32_t rkey = 0;
    std::vector<std::shared_ptr<Request>> users;  ///< may have finished
    ~Registration() { release(); }
    [[nodiscard]] bool in_use() {
      std::erase_if(users, [](const auto& r) { return r->state.load() != Request::State::kPending; });
      return !users.empty();
    }
    void close() {
      if (!device->inherited() && in_use()) {
        PyErr_SetString(PyExc_BufferError,
                        "requests on this memory region are pending: wait for them before closing it");
        throw py::error_already_set();
      }
      release();
    }
    void release() {
      if (!view) return;
      {
        const py::gil_scoped_release unlocked;
        try {
          device->deregister_memory(rkey);
        } catch (const TransportError&) {  // a closed device has no regions left
        }
      }
      view.reset();
    }
  };
  std::shared_ptr<Registration> registration;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  [[nodiscard]] PyRegion slice(std::uint64_t from, std::uint64_t bytes) const {
    if (from > length || bytes > length - from) throw py::index_error("the slice is outside the memory region");
    return {registration, offset + from, bytes};
  }
};

/// Objects that must live as long as a pending request. The first caller that sees its end releases them, with the GIL
/// held.
struct Hold {
  std::unique_ptr<BufferView> view;
  std::shared_ptr<PyRegion::Registration> registration;
  void release() {
    view.reset();
    registration.reset();
  }
};

struct PyRequest {
  std::shared_ptr<Request> request;
  std::shared_ptr<Hold> hold;
  std::shared_ptr<Device> device;

  [[nodiscard]] Request::State state() const { return request->state.load(std::memory_order_acquire); }
  [[nodiscard]] bool finished() const { return state() != Request::State::kPending; }
  /// Throws DeviceError in a forked child, where a request under way never ends.
  void check_owner() const {
    if (!finished()) device->check_owner();
  }
  /// Requires the GIL. Releases the buffer when the request has finished.
  [[nodiscard]] bool done() const {
    check_owner();
    if (!finished()) return false;
    hold->release();
    return true;
  }
  [[nodiscard]] std::uint64_t wait(std::optional<double> timeout_s) const {
    check_owner();
    if (!wait_for(
            *device, [this] { return finished(); }, to_nanos(timeout_s))) {
      raise_timeout(request->kind == Request::Kind::kSend
                        ? "the send did not finish within timeout_s; it continues"
                        : "the receive did not finish within timeout_s; it continues");
    }
    hold->release();
    if (state() == Request::State::kFailed) raise(request->failure, request->error);
    return request->bytes;
  }
};

class PyConnection {
 public:
  PyConnection(std::shared_ptr<Device> device, std::shared_ptr<Connection> connection)
      : device_(std::move(device)), connection_(std::move(connection)) {}
  PyConnection(const PyConnection&) = delete;
  PyConnection& operator=(const PyConnection&) = delete;
  ~PyConnection() {
    try {
      close();
    } catch (...) {  // NOLINT(bugprone-empty-catch): destructors must not throw; closing the device releases the rest
    }
    // If Ctrl-C or a peer that does not answer ended the wait early, the engine may still use this memory.
    prune(orphans());
    std::move(held_.begin(), held_.end(), std::back_inserter(orphans()));
  }

  PyRequest transfer(Request::Kind kind, const py::object& target, std::int64_t tag) {
    if (tag < 0 || tag > UINT32_MAX) throw py::value_error("tag must be 0 to 4294967295");
    device_->check_owner();
    prune(held_);
    auto request = std::make_shared<Request>();
    request->kind = kind;
    request->connection = connection_;
    request->tag = static_cast<std::uint32_t>(tag);
    const auto hold = std::make_shared<Hold>();
    if (py::isinstance<PyRegion>(target)) {
      const auto& region = target.cast<const PyRegion&>();
      if (!region.registration->view) throw py::value_error("the memory region is closed");
      if (region.registration->device != device_) throw py::value_error("the memory region belongs to another device");
      request->data = region.registration->view->data() + region.offset;
      request->length = region.length;
      request->rkey = region.registration->rkey;
      request->region_offset = region.offset;
      hold->registration = region.registration;
      if (region.registration->users.size() >= 64) static_cast<void>(region.registration->in_use());
      region.registration->users.push_back(request);
    } else {
      hold->view = std::make_unique<BufferView>(target, kind == Request::Kind::kReceive);
      request->data = hold->view->data();
      request->length = hold->view->size();
    }
    held_.push_back({request, hold});
    {
      const py::gil_scoped_release unlocked;
      device_->submit(request);
    }
    return {request, hold, device_};
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    {
      const py::gil_scoped_release unlocked;
      try {
        device_->close_connection(connection_);
      } catch (const TransportError&) {  // a closed device has closed its connections
      }
    }
    wait_for(
        *device_, [this] { return connection_->state == Connection::State::kClosed || device_->closed(); }, kCloseTime);
    prune(held_);
  }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::string peer() const { return format_address(connection_->peer_address); }

 private:
  struct Held {
    std::shared_ptr<Request> request;
    std::shared_ptr<Hold> hold;
  };
  static void prune(std::vector<Held>& held) {
    std::erase_if(held, [](const Held& h) {
      if (h.request->state.load(std::memory_order_acquire) == Request::State::kPending) return false;
      h.hold->release();  // the caller may keep the request without its buffer
      return true;
    });
  }
  /// Requests of destroyed connections. Never destroyed: at exit there is no interpreter to release buffers to.
  static std::vector<Held>& orphans() {
    static auto* list = new std::vector<Held>;
    return *list;
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Connection> connection_;
  std::vector<Held> held_;
  bool closed_ = false;
};

class PyListener {
 public:
  PyListener(std::shared_ptr<Device> device, std::shared_ptr<Listener> listener)
      : device_(std::move(device)), listener_(std::move(listener)) {}

  [[nodiscard]] py::bytes handle() const {
    return {reinterpret_cast<const char*>(listener_->handle.data()), listener_->handle.size()};
  }
  std::unique_ptr<PyConnection> accept(std::optional<double> timeout_s) {
    device_->check_owner();
    std::shared_ptr<Connection> connection;
    const auto ready = [&] {
      connection = listener_->accept();
      return connection != nullptr || device_->closed();
    };
    if (!wait_for(*device_, ready, to_nanos(timeout_s)))
      raise_timeout("no peer connected within timeout_s" + descriptor_shortage());
    if (!connection) throw DeviceError("the device is closed");
    return std::make_unique<PyConnection>(device_, connection);
  }
  void close() {
    const py::gil_scoped_release unlocked;
    device_->stop_listening(listener_);
  }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Listener> listener_;
};

IpAddress address_of(const std::string& text) {
  const auto address = parse_address(text);
  if (!address) throw py::value_error("'" + text + "' is not an IP address such as 10.0.0.1 or fd00::1");
  return *address;
}

/// A value for a message: text in quotes, numbers without.
std::string shown(const py::handle& value) {
  return py::isinstance<py::str>(value) ? py::repr(value).cast<std::string>() : py::str(value).cast<std::string>();
}

/// Accepts any integer, including numpy's. Throws OptionNotAllowed when it is negative or does not fit 64 bits.
std::uint64_t integer_of(const Option& option, const py::handle& given) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()));
  if (!index) {
    PyErr_Clear();
    throw py::type_error(std::string(option.name) + " must be an integer, not " + shown(given));
  }
  const std::uint64_t value = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {  // negative or too large
    PyErr_Clear();
    throw OptionNotAllowed();
  }
  return value;
}

double real_of(const Option& option, const py::handle& given) {
  const double value = PyFloat_AsDouble(given.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw py::type_error(std::string(option.name) + " must be a number, not " + shown(given));
  }
  return value;
}

std::string text_of(const Option& option, const py::handle& given) {
  if (!py::isinstance<py::str>(given)) {
    throw py::type_error(std::string(option.name) + " must be a string, not " + shown(given));
  }
  return given.cast<std::string>();
}

SourcePorts ports_of(const py::handle& given) {
  SourcePorts out;
  for (const auto& [peer, list] : given.cast<py::dict>()) {
    std::vector<std::string> ports;
    for (const py::handle port : py::iter(list)) ports.push_back(py::str(port).cast<std::string>());
    add_source_ports(out, py::str(peer).cast<std::string>(), ports);
  }
  return out;
}

OptionValue value_of(const Option& option, const py::handle& given) {
  switch (option.type) {
    case OptionType::kInteger:
    case OptionType::kBytes:
      return integer_of(option, given);
    case OptionType::kNumber:
    case OptionType::kBitsPerSecond:
    case OptionType::kSeconds:
      return real_of(option, given);
    case OptionType::kSecondsRange: {
      const auto [least, most] = given.cast<std::pair<py::object, py::object>>();
      return std::pair(real_of(option, least), real_of(option, most));
    }
    case OptionType::kChoice:
    case OptionType::kText:
      return text_of(option, given);
    case OptionType::kPorts:
      return ports_of(given);
  }
  throw std::logic_error("an option has an unknown type");
}

void set_from_python(DeviceOptions& out, const Option& option, const py::handle& given) {
  try {
    set_option(out, option, value_of(option, given));
  } catch (const OptionNotAllowed&) {
    throw py::value_error(std::string(option.name) + " must be " + allowed_values(option) + ", not " + shown(given));
  }
}

const Option& option_named(const std::string& name) {
  const auto found = std::ranges::find(options(), name, [](const Option& o) { return std::string_view(o.name); });
  if (found == options().end()) throw py::type_error("a device has no option '" + name + "'");
  return *found;
}

/// Options by name (engine/options.hpp). Throws ValueError, and TypeError for unknown names and wrong types.
DeviceOptions device_options(const std::string& address, const py::dict& given) {
  DeviceOptions out;
  set_addresses(out, address);
  std::size_t used = 0;
  for (const Option& option : options()) {
    if (!given.contains(option.name)) continue;
    set_from_python(out, option, given[option.name]);
    ++used;
  }
  for (const auto& [name, value] : given) {
    if (used == given.size()) break;
    static_cast<void>(option_named(name.cast<std::string>()));
  }
  check_combination(out, [](std::string_view name) { return std::string(name); });
  return out;
}

/// Seconds become floats, a range of seconds a tuple, an option that is not set None.
py::object to_python(const OptionValue& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return py::none();
        } else {
          return py::cast(v);
        }
      },
      value);
}

/// A row of the table of options.
py::dict describe(const Option& option) {
  py::dict row;
  row["name"] = option.name;
  row["variable"] = option.variable;
  row["former"] = option.former;
  row["type"] = to_string(option.type);
  row["default"] = to_python(option.get(DeviceOptions{}));
  row["automatic"] = option.automatic;
  row["meaning"] = option.meaning;
  row["allowed"] = allowed_values(option);
  if (const auto* bounds = std::get_if<IntegerBounds>(&option.domain)) {
    row["bounds"] = py::make_tuple(bounds->least, bounds->most);
  } else if (const auto* reals = std::get_if<RealBounds>(&option.domain)) {
    row["bounds"] = py::make_tuple(reals->least, reals->most);
  } else if (const auto* choices = std::get_if<Choices>(&option.domain)) {
    row["choices"] = *choices;
  }
  return row;
}

py::dict path_client_row(const PathClientCounters& c) {
  py::dict row;
  row["connected"] = c.connected;
  row["since_s"] = to_seconds(c.since);
  row["connections"] = c.connections;
  row["elephants"] = c.elephants;
  row["announced"] = c.announced;
  row["assigned"] = c.assigned;
  row["ecmp_starts"] = c.ecmp_starts;
  row["released"] = c.released;
  row["announces"] = c.announces;
  row["assigns"] = c.assigns;
  row["pushes"] = c.pushes;
  row["stale"] = c.stale;
  row["invalid"] = c.invalid;
  row["dropped"] = c.dropped;
  row["reverted"] = c.reverted;
  row["unbound"] = c.unbound;
  return row;
}

py::dict counters(Device& device) {
  DeviceCounters c;
  {
    const py::gil_scoped_release unlocked;
    c = device.counters();
  }
  py::list lanes;
  for (const LaneCounters& lane : c.lanes) {
    const QpCounters& q = lane.qp.counters;
    py::dict row;
    row["peer"] = format_address(lane.peer);
    row["lane"] = lane.lane;
    row["member"] = lane.member;
    row["port"] = lane.qp.port;
    row["port_method"] = to_string(lane.method);
    row["qpn"] = lane.qpn;
    row["flowlets"] = lane.flowlets;
    row["moves"] = lane.moves;
    row["tx_bytes"] = q.tx_bytes;
    row["tx_packets"] = q.tx_packets;
    row["rx_bytes"] = q.rx_bytes;
    row["rx_packets"] = q.rx_packets;
    row["retransmits"] = q.retransmits;
    row["timeouts"] = q.timeouts;
    row["naks"] = q.naks_received;
    row["rnr"] = q.rnr_received;
    row["duplicates"] = q.duplicates;
    row["out_of_order"] = q.out_of_order;
    row["stale_acks"] = q.stale_acks;
    row["rx_marked"] = q.rx_marked;
    row["tx_marked"] = q.tx_marked;
    row["rtt_s"] = to_seconds(lane.qp.smoothed_rtt);
    row["min_rtt_s"] = to_seconds(lane.qp.min_rtt);
    row["window"] = lane.qp.window;
    lanes.append(row);
  }
  py::dict messages;
  messages["sends"] = c.messages.sends;
  messages["send_bytes"] = c.messages.send_bytes;
  messages["receives"] = c.messages.receives;
  messages["receive_bytes"] = c.messages.receive_bytes;
  messages["failed"] = c.messages.failed;
  py::dict discards;
  discards["malformed"] = c.discards.malformed;
  discards["icrc"] = c.discards.icrc;
  discards["unknown_qp"] = c.discards.unknown_qp;
  discards["wrong_source"] = c.discards.wrong_source;
  discards["send_errors"] = c.discards.send_errors;
  discards["injected"] = c.discards.injected;
  discards["cnps"] = c.discards.cnps;
  py::dict out;
  out["lanes"] = lanes;
  out["messages"] = messages;
  out["discards"] = discards;
  out["qps"] = c.lanes.size();
  out["peers"] = c.peers;
  out["connections"] = c.connections;
  if (c.path_client) out["path_client"] = path_client_row(*c.path_client);
  return out;
}

}  // namespace

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

  py::class_<PyRequest>(m, "Request", "A send or a receive under way.")
      .def_property_readonly("done", &PyRequest::done, "Whether the request has finished or failed.")
      .def("wait", &PyRequest::wait, py::arg("timeout_s") = py::none(),
           "Wait until the request finishes and return the size of its message in bytes. Raises TransportError or "
           "ConnectionClosed when it failed, TimeoutError after `timeout_s` seconds (the request continues).");

  py::class_<PyRegion>(m, "MemoryRegion", "Memory that is registered once for many receives or sends.")
      .def("slice", &PyRegion::slice, py::arg("offset"), py::arg("length"),
           "A part of the region; offset and length in bytes. Raises IndexError.")
      .def_property_readonly(
          "length", [](const PyRegion& r) { return r.length; }, "Size in bytes.")
      .def(
          "close", [](const PyRegion& r) { r.registration->close(); },
          "Deregister the memory. Raises BufferError while requests on it are pending.");

  py::class_<PyConnection>(m, "Connection", "Messages to and from one peer, in order per tag. A context manager.")
      .def(
          "send",
          [](PyConnection& c, const py::object& buffer, std::int64_t tag) {
            return c.transfer(Request::Kind::kSend, buffer, tag);
          },
          py::arg("buffer"), py::arg("tag") = 0,
          "Start to send a buffer or a memory region; never blocks. Do not change it before the request is done. A "
          "send "
          "of up to 16 KiB may be done before the peer has it: a failure after that is raised by the connection's next "
          "request, and `close` still sends it.")
      .def(
          "recv",
          [](PyConnection& c, const py::object& buffer, std::int64_t tag) {
            return c.transfer(Request::Kind::kReceive, buffer, tag);
          },
          py::arg("buffer"), py::arg("tag") = 0,
          "Start to receive into a writable buffer or a memory region; never blocks. The message may be shorter.")
      .def("close", &PyConnection::close,
           "Close the connection: pending sends and receives fail on both sides. Closing twice is allowed.")
      .def_property_readonly("closed", &PyConnection::closed)
      .def_property_readonly("peer", &PyConnection::peer, "The peer's IP address.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyConnection& c, const py::args&) { c.close(); });

  py::class_<PyListener>(m, "Listener", "Accepts connections of peers.")
      .def_property_readonly("handle", &PyListener::handle,
                             "128 bytes that let a peer connect. Pass them to the peer by any means.")
      .def("accept", &PyListener::accept, py::arg("timeout_s") = py::none(),
           "Wait for the next connection. Raises TimeoutError, and DeviceError when the device is closed.")
      .def("close", &PyListener::close, "Stop listening. Accepted connections stay open.");

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
      .def("counters", &counters)
      .def_property_readonly("path_mtu", &Device::path_mtu)
      .def_property_readonly("udp_port", &Device::udp_port)
      .def_property_readonly("inherited", &Device::inherited);

  m.def(
      "wait_any",
      // A copy, because the caller's list may change while the GIL is released.
      [](const std::vector<PyRequest>& requests, std::optional<double> timeout_s) {
        if (requests.empty()) throw py::value_error("requests must not be empty");
        for (const PyRequest& request : requests) request.check_owner();
        std::size_t found = 0;
        const auto ready = [&] {
          for (std::size_t i = 0; i < requests.size(); ++i) {
            if (requests[i].finished()) {
              found = i;
              return true;
            }
          }
          return false;
        };
        // Polling one device is enough: the others have progress threads.
        if (!wait_for(*requests.front().device, ready, to_nanos(timeout_s)))
          raise_timeout("no request finished within timeout_s");
        requests[found].hold->release();
        return found;
      },
      py::arg("requests"), py::arg("timeout_s") = py::none(),
      "Wait for any request and return its index, the lowest one if several are done. Raises TimeoutError.");

  bind_collectives(m);

  m.def("options", [] {
    py::list out;
    for (const Option& option : options()) out.append(describe(option));
    return out;
  });
  m.def(
      "check_option",
      [](const std::string& name, const py::object& value) {
        DeviceOptions scratch;
        set_from_python(scratch, option_named(name), value);
      },
      py::arg("name"), py::arg("value"));
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
