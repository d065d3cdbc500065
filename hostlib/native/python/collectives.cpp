// SPDX-License-Identifier: Apache-2.0
// The binding of the collectives. hostlib/collectives.py documents and checks the arguments.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group.hpp"
#include "python/binding.hpp"

namespace py = pybind11;

namespace paralet {
namespace {

using collectives::Block;
using collectives::Blocks;
using collectives::DataType;
using collectives::Group;
using collectives::IssueOptions;
using collectives::Operation;
using collectives::ReduceOp;

// NOLINTNEXTLINE(performance-no-int-to-ptr): addresses come from Python as integers
std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

using Sizes = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  ///< address and bytes

Blocks blocks_of(const Sizes& given) {
  Blocks out;
  out.reserve(given.size());
  for (const auto& [address, bytes] : given) out.push_back({pointer(address), bytes});
  return out;
}

DataType type_named(const std::string& name) {
  const auto type = collectives::parse_data_type(name);
  if (!type) throw py::value_error("dtype '" + name + "' is not supported");
  return *type;
}

ReduceOp op_named(const std::string& name) {
  const auto op = collectives::parse_reduce_op(name);
  if (!op) throw py::value_error("op '" + name + "' is not supported");
  return *op;
}

struct PyOperation {
  std::shared_ptr<Group> group;
  std::shared_ptr<Operation> operation;

  /// Throws DeviceError in a forked child, where an operation under way never ends.
  [[nodiscard]] bool done() const {
    if (operation->done()) return true;
    group->check_owner();
    return false;
  }
  void wait(std::optional<double> timeout_s) const {
    const auto timeout = to_nanos(timeout_s);
    const Nanos start = now();
    while (!operation->done()) {
      const Nanos rest = timeout ? *timeout - (now() - start) : kSignalCheck;
      bool done = false;
      {
        const py::gil_scoped_release unlocked;
        done = group->wait(*operation, std::clamp<Nanos>(rest, 0, kSignalCheck));
      }
      if (done) break;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout && rest <= 0) raise_timeout("the operation did not finish within timeout_s; it continues");
    }
    if (operation->state == Operation::State::kFailed) raise(operation->failure, operation->error);
  }
};

/// The Python object. Its end closes the group.
class PyGroup {
 public:
  PyGroup(const std::shared_ptr<Device>& device, int rank, int size) {
    const py::gil_scoped_release unlocked;
    group_ = std::shared_ptr<Group>(new Group(device, rank, size), DeleteInOwner{});
  }
  PyGroup(const PyGroup&) = delete;
  PyGroup& operator=(const PyGroup&) = delete;
  ~PyGroup() { close(); }

  void close() {
    const py::gil_scoped_release unlocked;
    group_->close();
  }
  [[nodiscard]] Group& group() const { return *group_; }
  [[nodiscard]] PyOperation wrap(std::shared_ptr<Operation> operation) const { return {group_, std::move(operation)}; }

  /// Issues without the GIL: the executor's lock is never held for long, but other Python threads may run meanwhile.
  template <typename Issue>
  PyOperation issue(Issue issue) const {
    std::shared_ptr<Operation> operation;
    {
      const py::gil_scoped_release unlocked;
      operation = issue(*group_);
    }
    return {group_, std::move(operation)};
  }

  [[nodiscard]] std::vector<PyOperation> take_finished(std::optional<double> timeout_s) const {
    const auto timeout = to_nanos(timeout_s);
    const Nanos start = now();
    for (;;) {
      const Nanos rest = timeout ? *timeout - (now() - start) : kSignalCheck;
      std::vector<std::shared_ptr<Operation>> finished;
      {
        const py::gil_scoped_release unlocked;
        finished = group_->take_finished(std::clamp<Nanos>(rest, 0, kSignalCheck));
      }
      if (!finished.empty() || group_->closed() || (timeout && rest <= 0)) {
        std::vector<PyOperation> out;
        out.reserve(finished.size());
        for (auto& operation : finished) out.push_back({group_, std::move(operation)});
        return out;
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }

 private:
  std::shared_ptr<Group> group_;
};

void set_handles(const PyGroup& group, const std::vector<py::bytes>& given) {
  std::vector<std::array<std::byte, handshake::kHandleBytes>> handles;
  for (const py::bytes& text : given) {
    const std::string bytes = text;
    auto& handle = handles.emplace_back();
    if (bytes.size() != handle.size()) throw py::value_error("exchange must return 128 bytes for each rank");
    std::memcpy(handle.data(), bytes.data(), handle.size());
  }
  const py::gil_scoped_release unlocked;
  group.group().set_handles(std::move(handles));
}

IssueOptions options_of(std::optional<double> timeout_s, bool awaited, bool notify) {
  return {.timeout = to_nanos(timeout_s), .awaited = awaited, .notify = notify};
}

}  // namespace

void bind_collectives(py::module_& m) {
  py::class_<PyOperation>(m, "Operation")
      .def_property_readonly("id", [](const PyOperation& o) { return o.operation->id; })
      .def_property_readonly("done", [](const PyOperation& o) { return o.done(); })
      .def_property_readonly("error",
                             [](const PyOperation& o) -> std::optional<std::string> {
                               if (!o.done() || o.operation->state == Operation::State::kDone) {
                                 return std::nullopt;
                               }
                               return o.operation->error;
                             })
      .def_property_readonly("source",
                             [](const PyOperation& o) -> std::optional<int> {
                               if (!o.done() || o.operation->source < 0) return std::nullopt;
                               return o.operation->source;
                             })
      .def("wait", &PyOperation::wait, py::arg("timeout_s") = py::none());

  using Timeout = std::optional<double>;
  py::class_<PyGroup>(m, "Group")
      .def(py::init<const std::shared_ptr<Device>&, int, int>(), py::arg("device"), py::arg("rank"), py::arg("size"))
      .def_property_readonly("handle",
                             [](const PyGroup& g) {
                               const auto& handle = g.group().handle();
                               return py::bytes(reinterpret_cast<const char*>(handle.data()), handle.size());
                             })
      .def("set_handles", &set_handles, py::arg("handles"))
      .def_property_readonly("error",
                             [](const PyGroup& g) -> std::optional<std::string> {
                               std::string error = g.group().error();
                               if (error.empty()) return std::nullopt;
                               return error;
                             })
      .def_property_readonly("closed", [](const PyGroup& g) { return g.group().closed(); })
      .def_property_readonly("inherited", [](const PyGroup& g) { return g.group().inherited(); })
      .def("all_reduce",
           [](const PyGroup& g, std::uint64_t source, std::uint64_t target, std::uint64_t count,
              const std::string& type, const std::string& op, Timeout timeout_s, bool awaited, bool notify) {
             const DataType t = type_named(type);
             const ReduceOp o = op_named(op);
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) {
               return group.all_reduce(pointer(source), pointer(target), count, t, o, options);
             });
           })
      .def("reduce",
           [](const PyGroup& g, std::uint64_t source, std::uint64_t target, std::uint64_t count,
              const std::string& type, const std::string& op, int root, Timeout timeout_s, bool awaited, bool notify) {
             const DataType t = type_named(type);
             const ReduceOp o = op_named(op);
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) {
               return group.reduce(pointer(source), pointer(target), count, t, o, root, options);
             });
           })
      .def("broadcast",
           [](const PyGroup& g, std::uint64_t address, std::uint64_t bytes, int root, Timeout timeout_s, bool awaited,
              bool notify) {
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) { return group.broadcast(pointer(address), bytes, root, options); });
           })
      .def(
          "all_gather",
          [](const PyGroup& g, std::uint64_t source, const Sizes& target, Timeout timeout_s, bool awaited,
             bool notify) {
            const IssueOptions options = options_of(timeout_s, awaited, notify);
            return g.issue([&](Group& group) { return group.all_gather(pointer(source), blocks_of(target), options); });
          })
      .def("reduce_scatter",
           [](const PyGroup& g, const Sizes& source, std::uint64_t target, const std::string& type,
              const std::string& op, Timeout timeout_s, bool awaited, bool notify) {
             const DataType t = type_named(type);
             const ReduceOp o = op_named(op);
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue(
                 [&](Group& group) { return group.reduce_scatter(blocks_of(source), pointer(target), t, o, options); });
           })
      .def(
          "all_to_all",
          [](const PyGroup& g, const Sizes& source, const Sizes& target, Timeout timeout_s, bool awaited, bool notify) {
            const IssueOptions options = options_of(timeout_s, awaited, notify);
            return g.issue(
                [&](Group& group) { return group.all_to_all(blocks_of(source), blocks_of(target), options); });
          })
      .def("gather",
           [](const PyGroup& g, std::uint64_t source, std::uint64_t bytes, const Sizes& target, int root,
              Timeout timeout_s, bool awaited, bool notify) {
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) {
               return group.gather(Block{pointer(source), bytes}, blocks_of(target), root, options);
             });
           })
      .def("scatter",
           [](const PyGroup& g, const Sizes& source, std::uint64_t target, std::uint64_t bytes, int root,
              Timeout timeout_s, bool awaited, bool notify) {
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) {
               return group.scatter(blocks_of(source), Block{pointer(target), bytes}, root, options);
             });
           })
      .def("barrier",
           [](const PyGroup& g, Timeout timeout_s, bool awaited, bool notify) {
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) { return group.barrier(options); });
           })
      .def("send",
           [](const PyGroup& g, std::uint64_t address, std::uint64_t bytes, int peer, std::uint32_t tag,
              Timeout timeout_s, bool awaited, bool notify) {
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) { return group.send(pointer(address), bytes, peer, tag, options); });
           })
      .def("recv",
           [](const PyGroup& g, std::uint64_t address, std::uint64_t bytes, std::optional<int> peer, std::uint32_t tag,
              Timeout timeout_s, bool awaited, bool notify) {
             const IssueOptions options = options_of(timeout_s, awaited, notify);
             return g.issue([&](Group& group) { return group.receive(pointer(address), bytes, peer, tag, options); });
           })
      .def("take_finished", &PyGroup::take_finished, py::arg("timeout_s"))
      .def("abort",
           [](const PyGroup& g, const std::string& reason) {
             const py::gil_scoped_release unlocked;
             g.group().abort(reason);
           })
      .def("close", &PyGroup::close);
}

}  // namespace paralet
