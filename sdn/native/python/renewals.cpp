// SPDX-License-Identifier: Apache-2.0
// Hosts' renewals as the path service sees them. Open elephants keep the Python objects of their pairs.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "bindings.hpp"
#include "host_line.hpp"
#include "sockets.hpp"

namespace paralet::renewals {
namespace {

namespace py = pybind11;

PyObject* owner(const Elephants::Open& open) { return static_cast<PyObject*>(open.pair->owner); }

/// Each of them holds a reference to the Python object of its pair.
class HeldElephants : public Elephants {
 public:
  HeldElephants() = default;
  HeldElephants(const HeldElephants&) = delete;
  HeldElephants& operator=(const HeldElephants&) = delete;
  ~HeldElephants() { clear(); }

  void hold(std::int64_t id, py::handle object, std::int64_t bytes) {
    auto& pair = py::cast<Pair&>(object);
    pair.owner = object.inc_ref().ptr();
    if (const Pair* before = put(id, pair, bytes)) py::handle(static_cast<PyObject*>(before->owner)).dec_ref();
  }

  py::object let_go(std::int64_t id) {
    const auto open = take(id);
    if (!open) return py::none();
    return py::make_tuple(py::reinterpret_steal<py::object>(owner(*open)), open->bytes);
  }

  void clear() {
    while (!all().empty()) let_go(all().begin()->first);
  }
};

py::tuple opened(const Elephants::Open& open) {
  return py::make_tuple(py::reinterpret_borrow<py::object>(owner(open)), open.bytes);
}

py::list items(const HeldElephants& elephants) {
  py::list all;
  for (const auto& [id, open] : elephants.in_order()) all.append(py::make_tuple(id, opened(open)));
  return all;
}

/// Has the garbage collector look into the cycle of a client, its open elephants and their pairs.
void collect(PyHeapTypeObject* type) {
  type->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->ht_type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!py::detail::is_holder_constructed(self)) return 0;
    for (const auto& each : py::cast<HeldElephants&>(py::handle(self)).all()) Py_VISIT(owner(each.second));
    return 0;
  };
  type->ht_type.tp_clear = [](PyObject* self) {
    if (py::detail::is_holder_constructed(self)) py::cast<HeldElephants&>(py::handle(self)).clear();
    return 0;
  };
}

py::list told(const Done& done) {
  py::list said;
  for (const auto& each : done.said) said.append(py::make_tuple(each.number, py::bytes(each.lines)));
  return said;
}

/// The bytes that were not answered, and the answers.
py::tuple answer(Host& host, std::uint64_t number, const py::bytes& data, double now_s, Done& done) {
  std::string out;
  const std::string_view said(data);
  const std::size_t answered = host.answer(number, said, now_s, out, done);
  return py::make_tuple(answered == 0 ? data : py::bytes(said.data() + answered, said.size() - answered),
                        py::bytes(out));
}

py::list renewals(const Done& done) {
  py::list all;
  for (const auto& each : done.renewals) all.append(py::make_tuple(each.seconds, each.count));
  return all;
}

py::list events(Sockets& sockets, double now_s, bool may_answer, int most, double most_s, Done& done) {
  py::list all;
  for (const Event& each : sockets.round(now_s, may_answer, most, most_s, done)) {
    all.append(py::make_tuple(each.number, each.kind, py::bytes(each.data), each.error));
  }
  return all;
}

/// The kind of a message and its fields: only tests use it.
py::object fields(const py::bytes& line) {
  const auto read = read_line(std::string_view(line));
  if (!read) return py::none();
  if (const auto* released = std::get_if<Release>(&*read)) return py::make_tuple("release", released->id);
  if (const auto* ping = std::get_if<Ping>(&*read)) return py::make_tuple("ping", ping->nonce);
  const auto& said = std::get<Announce>(*read);
  return py::make_tuple("announce", said.id, said.peer, said.bytes, said.job, said.peer_port);
}

}  // namespace

void bind(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const std::system_error& error) {
      py::object said = py::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, said.ptr());
    }
  });

  module.def("fields", &fields);

  py::class_<Pair>(module, "Pair")
      .def(py::init([](std::string peer, std::uint16_t port) {
        auto pair = std::make_unique<Pair>();
        pair->peer = std::move(peer);
        pair->peer_port = port;
        return pair;
      }))
      .def_readwrite("elephants", &Pair::elephants)
      .def_readwrite("newest_id", &Pair::newest_id)
      .def_readwrite("job", &Pair::job)
      .def_readwrite("since_s", &Pair::since_s)
      .def_readwrite("measured_bps", &Pair::measured_bps)
      .def("promise",
           [](Pair& pair, std::string ports, std::string rate_bps) {
             pair.promise = Promise{std::move(ports), std::move(rate_bps)};
           })
      .def("end_promise", [](Pair& pair) { pair.promise.reset(); });

  py::class_<HeldElephants, std::shared_ptr<HeldElephants>>(module, "Elephants", py::custom_type_setup(collect))
      .def(py::init<>())
      .def_readwrite("generation", &HeldElephants::generation)
      .def("__len__", &HeldElephants::size)
      .def("__contains__",
           [](const HeldElephants& elephants, std::int64_t id) { return elephants.find(id) != nullptr; })
      .def("get",
           [](const HeldElephants& elephants, std::int64_t id) -> py::object {
             const auto* open = elephants.find(id);
             return open == nullptr ? py::object(py::none()) : opened(*open);
           })
      .def("put", &HeldElephants::hold)
      .def("pop", &HeldElephants::let_go)
      .def("items", &items)
      .def("newest", &HeldElephants::newest);

  py::class_<Done>(module, "Done")
      .def(py::init([](bool is_logged) {
             Done done;
             done.is_logged = is_logged;
             return done;
           }),
           py::arg("is_logged"))
      .def_readonly("renewed", &Done::renewed)
      .def_readonly("answers", &Done::answers)
      .def_property_readonly("renewals", &renewals)
      .def_property_readonly("said", &told)
      .def_property_readonly("counted", [](const Done& done) { return py::bytes(done.counted); });

  py::class_<Host, std::shared_ptr<Host>>(module, "Host")
      .def(py::init([](double lines_per_s, double burst_lines, std::size_t line_bytes, double now_s) {
        return std::make_shared<Host>(Limits{lines_per_s, burst_lines, line_bytes}, now_s);
      }))
      .def_readwrite("heard_s", &Host::heard_s)
      .def_readwrite("full_s", &Host::full_s)
      .def_readwrite("is_clear", &Host::is_clear)
      .def(
          "serve", [](Host& host, std::shared_ptr<HeldElephants> elephants) { host.elephants = std::move(elephants); },
          py::arg("elephants").none(true))
      .def("allow", &Host::allow)
      .def("answer", &answer);

  py::native_enum<Event::Kind>(module, "Kind", "enum.Enum")
      .value("SAID", Event::Kind::said)
      .value("ENDED", Event::Kind::ended)
      .value("FAILED", Event::Kind::failed)
      .value("WAITS", Event::Kind::waits)
      .value("SENT", Event::Kind::sent)
      .finalize();

  py::class_<Sockets>(module, "Sockets")
      .def(py::init<>())
      .def_property_readonly("descriptor", &Sockets::descriptor)
      .def("add", &Sockets::add, py::arg("number"), py::arg("descriptor"), py::arg("host").none(false))
      .def("remove", &Sockets::remove)
      .def("read", &Sockets::read)
      .def("send", [](Sockets& sockets, std::uint64_t number,
                      const py::bytes& data) { return sockets.send(number, std::string_view(data)); })
      .def("unsent", &Sockets::unsent)
      .def("drop", &Sockets::drop)
      .def("round", &events, py::arg("now_s"), py::arg("may_answer"), py::arg("most"), py::arg("most_s"),
           py::arg("done"));
}

}  // namespace paralet::renewals
