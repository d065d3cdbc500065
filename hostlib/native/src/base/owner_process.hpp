// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace paralet {

/// Remembers which process made an object. A forked child has a copy of the object but none of its threads, perhaps a
/// mutex that one of them held, and shares its sockets with the parent.
class OwnerProcess {
 public:
  OwnerProcess();
  /// Whether this process is a forked child of the one that made the object. It costs a load, so the data path may ask:
  /// a handler of pthread_atfork counts forks, where getpid would be a system call. A child of the system call clone,
  /// which runs no such handlers, is not noticed.
  [[nodiscard]] bool inherited() const;

 private:
  unsigned forks_;  ///< between the first object of this class and this one
};

/// Deletes an object of a class with `inherited`, but not in a forked child: a thread that did not come along may have
/// been changing it.
struct DeleteInOwner {
  template <typename Object>
  void operator()(Object* object) const {
    if (!object->inherited()) delete object;  // NOLINT(cppcoreguidelines-owning-memory): the deleter of a smart pointer
  }
};

}  // namespace paralet
