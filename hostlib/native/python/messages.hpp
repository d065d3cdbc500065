// SPDX-License-Identifier: Apache-2.0
// Connections, listeners, requests and memory regions as Python objects. Buffers stay exported, and so cannot move,
// until the engine has finished with them. Waiting releases the GIL and responds to Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "engine/device.hpp"
#include "python/binding.hpp"

namespace paralet {

/// An exported Python buffer. Constructed and destroyed with the GIL held.
class BufferView {
 public:
  BufferView(const pybind11::object& object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw pybind11::error_already_set();
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
      const pybind11::gil_scoped_release unlocked;
      done = device.wait(ready, std::clamp<Nanos>(rest, 0, kSignalCheck));
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
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
    [[nodiscard]] bool in_use();
    void close();
    void release();
  };
  std::shared_ptr<Registration> registration;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  [[nodiscard]] PyRegion slice(std::uint64_t from, std::uint64_t bytes) const;
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
  [[nodiscard]] bool done() const;
  [[nodiscard]] std::uint64_t wait(std::optional<double> timeout_s) const;
};

class PyConnection {
 public:
  PyConnection(std::shared_ptr<Device> device, std::shared_ptr<Connection> connection)
      : device_(std::move(device)), connection_(std::move(connection)) {}
  PyConnection(const PyConnection&) = delete;
  PyConnection& operator=(const PyConnection&) = delete;
  ~PyConnection();

  PyRequest transfer(Request::Kind kind, const pybind11::object& target, std::int64_t tag);
  void close();
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::string peer() const { return format_address(connection_->peer_address); }

 private:
  struct Held {
    std::shared_ptr<Request> request;
    std::shared_ptr<Hold> hold;
  };
  static void prune(std::vector<Held>& held);
  static std::vector<Held>& orphans();

  std::shared_ptr<Device> device_;
  std::shared_ptr<Connection> connection_;
  std::vector<Held> held_;
  bool closed_ = false;
};

class PyListener {
 public:
  PyListener(std::shared_ptr<Device> device, std::shared_ptr<Listener> listener)
      : device_(std::move(device)), listener_(std::move(listener)) {}

  [[nodiscard]] pybind11::bytes handle() const;
  std::unique_ptr<PyConnection> accept(std::optional<double> timeout_s);
  void close();

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Listener> listener_;
};

/// Adds these classes to the module, and `wait_any`.
void bind_messages(pybind11::module_& m);

}  // namespace paralet
