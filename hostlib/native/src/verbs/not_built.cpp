// SPDX-License-Identifier: Apache-2.0
// In place of the verbs back end where <infiniband/verbs.h> is absent.
#include "base/errors.hpp"
#include "verbs/verbs_backend.hpp"

namespace paralet {
namespace {

constexpr const char* kNotBuilt =
    "the verbs back end was not built, for its header was missing: install libibverbs-dev and build again";

}  // namespace

std::vector<VerbsPort> verbs_ports() { throw DeviceError(kNotBuilt); }
std::unique_ptr<Backend> open_verbs(const VerbsOptions& /*options*/) { throw DeviceError(kNotBuilt); }

}  // namespace paralet
