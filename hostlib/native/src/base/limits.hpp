// SPDX-License-Identifier: Apache-2.0
// Limits of the process: what to say when one is reached.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace paralet {

/// The text of an error number. Where it is a limit of the process, it says how to raise it.
std::string error_text(int number);

/// "; this process may open no more files: ..", to be appended to a message, while that is so; else nothing.
std::string descriptor_shortage();

/// A thread that runs `body`. Throws DeviceError when the process may start no more.
std::thread start_thread(std::function<void()> body);

}  // namespace paralet
