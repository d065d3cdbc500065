// SPDX-License-Identifier: Apache-2.0
// What the bindings of both models share: views of NumPy arrays, checks, and what each file binds.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "message_waits.hpp"

namespace paralet::sim {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

/// Links, flows, queue pairs, messages and waits are numbered with 32 bits.
constexpr std::int64_t kMost = std::int64_t{1} << 31;

template <typename T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

/// Raises ValueError with `otherwise` unless `right`.
inline void check(bool right, const char* otherwise) {
  if (!right) throw py::value_error(otherwise);
}

/// The array of `get(0)`, `get(1)` .. `get(count - 1)`.
template <typename T, typename Get>
Array<T> column(std::size_t count, Get get) {
  Array<T> out(static_cast<py::ssize_t>(count));
  for (std::size_t i = 0; i < count; ++i) out.mutable_data()[i] = get(static_cast<std::uint32_t>(i));
  return out;
}

/// `later[i]` waits for `earlier[i]`. Raises ValueError, and then changes nothing.
inline void add_waits(MessageWaits& waits, const Array<std::int64_t>& earlier, const Array<std::int64_t>& later) {
  check(earlier.size() == later.size(), "earlier and later differ in length");
  const auto known = static_cast<std::int64_t>(waits.size());
  for (const auto& ends : {view(earlier), view(later)}) {
    check(std::ranges::all_of(ends, [&](auto message) { return message >= 0 && message < known; }),
          "a wait names a message that does not exist");
  }
  using Message = MessageWaits::Message;
  check(std::ranges::none_of(view(later), [&](auto message) { return waits.is_active(static_cast<Message>(message)); }),
        "a message may get waits only before the first advance after it was added");
  for (std::size_t i = 0; i < view(later).size(); ++i) {
    waits.add_wait(static_cast<Message>(view(earlier)[i]), static_cast<Message>(view(later)[i]));
  }
}

}  // namespace paralet::sim

namespace paralet::fluid {
/// FluidSimulation.
void bind(sim::py::module_& module);
}  // namespace paralet::fluid

namespace paralet::packet {
/// PacketSimulation.
void bind(sim::py::module_& module);
}  // namespace paralet::packet
