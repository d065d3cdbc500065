// SPDX-License-Identifier: Apache-2.0
#include "python/messages.hpp"

#include <pybind11/stl.h>

#include <iterator>

#include "base/errors.hpp"
#include "base/limits.hpp"

namespace py = pybind11;

namespace paralet {
namespace {

constexpr Nanos kCloseTime = 15 * kSecond;

}  // namespace

bool PyRegion::Registration::in_use() {
  std::erase_if(users, [](const auto& r) { return r->state.load() != Request::State::kPending; });
  return !users.empty();
}

void PyRegion::Registration::close() {
  if (!device->inherited() && in_use()) {
    PyErr_SetString(PyExc_BufferError, "requests on this memory region are pending: wait for them before closing it");
    throw py::error_already_set();
  }
  release();
}

void PyRegion::Registration::release() {
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

PyRegion PyRegion::slice(std::uint64_t from, std::uint64_t bytes) const {
  if (from > length || bytes > length - from) throw py::index_error("the slice is outside the memory region");
  return {registration, offset + from, bytes};
}

bool PyRequest::done() const {
  check_owner();
  if (!finished()) return false;
  hold->release();
  return true;
}

std::uint64_t PyRequest::wait(std::optional<double> timeout_s) const {
  check_owner();
  if (!wait_for(
          *device, [this] { return finished(); }, to_nanos(timeout_s))) {
    raise_timeout(request->kind == Request::Kind::kSend ? "the send did not finish within timeout_s; it continues"
                                                        : "the receive did not finish within timeout_s; it continues");
  }
  hold->release();
  if (state() == Request::State::kFailed) raise(request->failure, request->error);
  return request->bytes;
}

PyConnection::~PyConnection() {
  try {
    close();
  } catch (...) {  // NOLINT(bugprone-empty-catch): destructors must not throw; closing the device releases the rest
  }
  // If Ctrl-C or a peer that does not answer ended the wait early, the engine may still use this memory.
  prune(orphans());
  std::move(held_.begin(), held_.end(), std::back_inserter(orphans()));
}

PyRequest PyConnection::transfer(Request::Kind kind, const py::object& target, std::int64_t tag) {
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

void PyConnection::close() {
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

void PyConnection::prune(std::vector<Held>& held) {
  std::erase_if(held, [](const Held& h) {
    if (h.request->state.load(std::memory_order_acquire) == Request::State::kPending) return false;
    h.hold->release();  // the caller may keep the request without its buffer
    return true;
  });
}

/// Requests of destroyed connections. Never destroyed: at exit there is no interpreter to release buffers to.
std::vector<PyConnection::Held>& PyConnection::orphans() {
  static auto* list = new std::vector<Held>;
  return *list;
}

py::bytes PyListener::handle() const {
  return {reinterpret_cast<const char*>(listener_->handle.data()), listener_->handle.size()};
}

std::unique_ptr<PyConnection> PyListener::accept(std::optional<double> timeout_s) {
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

void PyListener::close() {
  const py::gil_scoped_release unlocked;
  device_->stop_listening(listener_);
}

void bind_messages(py::module_& m) {
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
}

}  // namespace paralet
