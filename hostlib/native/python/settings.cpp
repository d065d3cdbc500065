// SPDX-License-Identifier: Apache-2.0
// Options of devices, from Python objects and from PARALET_* variables.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/interfaces.hpp"
#include "engine/lane_segments.hpp"
#include "engine/options.hpp"
#include "python/binding.hpp"
#include "settings/backend_choice.hpp"
#include "settings/error.hpp"
#include "settings/interface_choice.hpp"
#include "settings/parameters.hpp"
#include "settings/read.hpp"

namespace py = pybind11;

namespace paralet {
namespace {

// -- options as Python objects ------------------------------------------------------------------------------

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

LaneSegments segments_of(const py::handle& given) {
  LaneSegments out;
  for (const auto& [peer, lanes] : given.cast<py::dict>()) {
    std::vector<std::vector<std::string>> lists;
    for (const py::handle lane : py::iter(lanes)) {
      auto& list = lists.emplace_back();
      for (const py::handle segment : py::iter(lane)) list.push_back(py::str(segment).cast<std::string>());
    }
    add_segments(out, py::str(peer).cast<std::string>(), lists);
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
    case OptionType::kSegments:
      return segments_of(given);
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

/// Seconds become floats, a range of seconds a tuple, ports lists by address, an option that is not set None.
py::object to_python(const OptionValue& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        using Value = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<Value, std::monostate>) {
          return py::none();
        } else if constexpr (std::is_same_v<Value, SourcePorts>) {
          py::dict out;
          for (const auto& [peer, ports] : v) out[py::str(format_address(peer))] = py::cast(ports);
          return out;
        } else if constexpr (std::is_same_v<Value, LaneSegments>) {
          py::dict out;
          for (const auto& [peer, lanes] : v) {
            py::list lists;
            for (const auto& lane : lanes) {
              py::list list;
              for (const IpAddress& segment : lane) list.append(format_address(segment));
              lists.append(list);
            }
            out[py::str(format_address(peer))] = lists;
          }
          return out;
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

// -- PARALET_* variables ------------------------------------------------------------------------------------

/// Throws ValueError. A file may hold bytes that are no UTF-8.
[[noreturn]] void raise_value_error(const std::string& sentence) {
  const auto text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(sentence.data(), static_cast<Py_ssize_t>(sentence.size()), "replace"));
  PyErr_SetObject(PyExc_ValueError, text.ptr());
  throw py::error_already_set();
}

/// What the variables say (hostlib/parameters.py). Throws ValueError.
py::dict read_parameters(const settings::Environment& environment) {
  settings::Settings read;
  try {
    const py::gil_scoped_release unlocked;  // the host of a path service is looked up
    read = settings::read(environment);
    settings::check(read);
  } catch (const settings::SettingsError& error) {
    raise_value_error(error.what());
  }
  py::dict options;
  for (const auto& [name, value] : read.options) options[py::str(name)] = to_python(value);
  std::vector<std::string> addresses;
  addresses.reserve(read.selection.addresses.size());
  for (const IpAddress& address : read.selection.addresses) addresses.push_back(format_address(address));
  py::dict out;
  out["options"] = options;
  out["automatic_backend"] = read.automatic_backend;
  out["addresses"] = addresses;
  out["interfaces"] = read.selection.names ? read.selection.names->text() : std::string();
  out["advice"] = read.advice;
  return out;
}

/// The name of the back end that suits a device at this address, or at several joined by '+', and why.
std::pair<std::string, std::string> choose_backend(const std::string& address) {
  DeviceOptions options;
  set_addresses(options, address);
  std::vector<IpAddress> addresses = options.fused_with;
  addresses.push_back(options.address);
  const auto choice = settings::choose_backend(addresses, settings::known_verbs_ports());
  return {to_string(choice.backend), choice.why};
}

using LocalInterface = std::tuple<std::string, std::string, std::uint32_t>;  // name, address, MTU in bytes

/// The addresses of the interfaces that are chosen, of those given or else of this network namespace's.
std::vector<std::string> choose_addresses(const std::optional<std::vector<LocalInterface>>& local,
                                          const std::vector<std::string>& addresses, const std::string& names,
                                          std::optional<bool> rather_ipv4) {
  std::vector<Interface> all;
  if (local) {
    for (const auto& [name, address, mtu_bytes] : *local) {
      all.push_back({.name = name, .address = address_of(address), .mtu_bytes = mtu_bytes, .up = true});
    }
  } else {
    all = interfaces();
  }
  settings::Selection selection{.names = settings::NameFilter::parse(names), .rather_ipv4 = rather_ipv4};
  for (const std::string& address : addresses) selection.addresses.push_back(address_of(address));
  std::vector<std::string> out;
  for (const Interface& chosen : settings::select(all, selection)) out.push_back(format_address(chosen.address));
  return out;
}

}  // namespace

IpAddress address_of(const std::string& text) {
  const auto address = parse_address(text);
  if (!address) throw py::value_error("'" + text + "' is not an IP address such as 10.0.0.1 or fd00::1");
  return *address;
}

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

void bind_settings(py::module_& m) {
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
  m.def("parameters", [] {
    std::vector<std::string> names;
    for (const settings::Parameter& parameter : settings::parameters()) names.push_back(parameter.name);
    return names;
  });
  m.def("read_parameters", &read_parameters, py::arg("environment"));
  m.def("choose_backend", &choose_backend, py::arg("address"));
  m.def("choose_addresses", &choose_addresses, py::arg("local"), py::arg("addresses"), py::arg("names"),
        py::arg("rather_ipv4"));
}

}  // namespace paralet
