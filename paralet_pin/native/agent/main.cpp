// SPDX-License-Identifier: Apache-2.0
// paralet-pin-agent SOCKET [PID]: the agent of the programs that `paralet pin` starts. Its settings are PARALET_*
// variables (docs/pin.md). With PID it goes to the background as soon as it listens, and ends with that process and all
// that have asked for ports; without, it stays in the foreground until SIGTERM or SIGINT.
#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "agent.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "path_client/channels.hpp"
#include "settings/error.hpp"
#include "settings/interface_choice.hpp"
#include "settings/read.hpp"

namespace {

using namespace paralet;

pin::AgentOptions options_of(const settings::Settings& settings) {
  const PolicyOptions& policy = settings.device.policy;
  pin::AgentOptions options{.path_service = policy.path_client, .connects_ahead = true, .ports = policy.ports};
  options.member = pin::member_of(pin::own_variables(), policy.path_client.job);
  if (policy.kind == PolicyKind::kController) {
    if (options.path_service.service.empty()) settings::refuse("set PARALET_PATH_SERVICE, or PARALET_PORTS");
    path_client::check(options.path_service);
    static_cast<void>(path_client::channels(options.path_service.tls));  // throws where the files cannot be used
    options.ports.clear();
  } else if (policy.kind == PolicyKind::kPinned) {
    options.path_service = {.job = policy.path_client.job};
  } else {
    settings::refuse("PARALET_POLICY has to be controller or pinned, for ports to come from");
  }
  if (!settings.selection.addresses.empty()) {
    options.addresses = settings.selection.addresses;
  } else {
    // Both families, if an interface has addresses of both.
    for (const bool ipv4 : {true, false}) {
      settings::Selection selection = settings.selection;
      selection.ipv4 = ipv4;
      for (const Interface& chosen : settings::select(interfaces(), selection)) {
        options.addresses.push_back(chosen.address);
      }
    }
  }
  return options;
}

/// Leaves the program's session, terminal and pipes: whoever reads these must not wait for the agent.
void detach() {
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, standard);
  if (null > STDERR_FILENO) ::close(null);
}

int run(const char* socket_path, pid_t program) {
  pin::AgentOptions options = options_of(settings::read(settings::process_environment()));
  options.socket_path = socket_path;
  options.program = program;
  if (program != 0 && ::kill(program, 0) != 0 && errno == ESRCH) {
    settings::refuse("there is no process " + std::to_string(program));
  }
  if (program != 0) options.path_service.log = [](const std::string&) {};  // programs say that the service is away
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  pin::Agent agent(std::move(options));
  if (program != 0) {
    const pid_t child = ::fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child > 0) ::_exit(0);  // the socket is the child's
    detach();
  }
  const FileDescriptor signals(::signalfd(-1, &ends, SFD_CLOEXEC));
  agent.run(signals.get());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  pid_t program = 0;
  if (count == 3) {
    const std::string_view text = words[2];
    const auto read = std::from_chars(text.data(), text.data() + text.size(), program);
    if (read.ec != std::errc() || program <= 0) count = 0;
  }
  if (count != 2 && count != 3) {
    std::fputs("usage: paralet-pin-agent SOCKET [PID]\n", stderr);
    return 2;
  }
  try {
    return run(words[1], program);
  } catch (const settings::SettingsError& error) {
    log_to_standard_error(error.what());
    return 2;
  } catch (const std::exception& error) {
    log_to_standard_error(std::string("the agent of `paralet pin` did not start: ") + error.what());
    return 1;
  }
}
