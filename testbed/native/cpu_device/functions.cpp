// SPDX-License-Identifier: Apache-2.0
#include "functions.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

namespace paralet::cpu_device {

namespace {

template <typename T, std::size_t N>
using Names = std::array<std::pair<std::string_view, T>, N>;

constexpr Names<Collective, 7> collectives = {{
    {"SendRecv", Collective::send_recv},
    {"Broadcast", Collective::broadcast},
    {"Reduce", Collective::reduce},
    {"AllGather", Collective::all_gather},
    {"AllGatherV", Collective::all_gather_v},
    {"ReduceScatter", Collective::reduce_scatter},
    {"AllReduce", Collective::all_reduce},
}};
constexpr Names<Reduction, 5> reductions = {{
    {"Sum", Reduction::sum},
    {"Prod", Reduction::prod},
    {"MinMax", Reduction::min_max},
    {"PreMulSum", Reduction::pre_mul_sum},
    {"SumPostDiv", Reduction::sum_post_div},
}};
constexpr Names<Element, 12> elements = {{
    {"i8", Element::i8},
    {"u8", Element::u8},
    {"i32", Element::i32},
    {"u32", Element::u32},
    {"i64", Element::i64},
    {"u64", Element::u64},
    {"f16", Element::f16},
    {"f32", Element::f32},
    {"f64", Element::f64},
    {"bf16", Element::bf16},
    {"f8e4m3", Element::f8e4m3},
    {"f8e5m2", Element::f8e5m2},
}};
constexpr Names<Algorithm, 7> algorithms = {{
    {"TREE", Algorithm::tree},
    {"RING", Algorithm::ring},
    {"COLLNET_DIRECT", Algorithm::collnet_direct},
    {"COLLNET_CHAIN", Algorithm::collnet_chain},
    {"NVLS", Algorithm::nvls},
    {"NVLS_TREE", Algorithm::nvls_tree},
    {"PAT", Algorithm::pat},
}};
constexpr Names<Protocol, 3> protocols = {{
    {"LL", Protocol::ll},
    {"LL128", Protocol::ll128},
    {"SIMPLE", Protocol::simple},
}};

template <typename T, std::size_t N>
std::optional<T> find(const Names<T, N>& names, std::string_view name) {
  const auto* found = std::find_if(names.begin(), names.end(), [&](const auto& each) { return each.first == name; });
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

// Takes the text up to the next '_' off the front.
std::string_view take_front(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('_'), rest.size());
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return taken;
}

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

}  // namespace

Function parse_function(std::string_view name) {
  Function function;
  function.name = name;
  std::string_view rest = name;
  const auto collective = find(collectives, take_front(rest));
  if (!collective) return function;
  function.collective = *collective;
  if (*collective == Collective::send_recv) {
    function.known = rest.empty();
    return function;
  }
  if (reduces(*collective)) {
    const auto reduction = find(reductions, take_front(rest));
    const auto element = find(elements, take_front(rest));
    if (!reduction || !element) return function;
    function.reduction = *reduction;
    function.element = *element;
  }
  const std::size_t last = rest.rfind('_');
  if (last == std::string_view::npos) return function;
  const auto algorithm = find(algorithms, rest.substr(0, last));
  const auto protocol = find(protocols, rest.substr(last + 1));
  if (!algorithm || !protocol) return function;
  function.algorithm = *algorithm;
  function.protocol = *protocol;
  function.known = true;
  return function;
}

std::string_view identifier(std::string_view mangled) {
  if (!mangled.starts_with("_Z")) return mangled;
  const std::string_view rest = mangled.substr(2);
  std::size_t length = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
  if (error != std::errc()) return mangled;
  const auto digits = static_cast<std::size_t>(end - rest.data());
  return length <= rest.size() - digits ? rest.substr(digits, length) : mangled;
}

}  // namespace paralet::cpu_device
