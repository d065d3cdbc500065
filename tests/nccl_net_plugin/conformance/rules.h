// SPDX-License-Identifier: Apache-2.0
// The rules of NCCL's contract for net plugins.
#pragma once

#include "end.h"

/// Where the two ends of a rule can run.
enum place {
  ALONE = 1,          ///< one end, one thread
  ONE_PROCESS = 2,    ///< two threads of one process
  TWO_PROCESSES = 4,  ///< two processes of one host
  TWO_HOSTS = 8,      ///< this program is one of two, given --role
  ANYWHERE = ONE_PROCESS | TWO_PROCESSES | TWO_HOSTS,
  TWO_PROCESSES_OR_HOSTS = TWO_PROCESSES | TWO_HOSTS,
};

struct setting {
  const char* name;
  const char* value;
};

struct rule {
  const char* name;
  const char* sentence;  ///< the requirement
  void (*alone)(struct end* end);
  void (*listener)(struct end* end);
  void (*connector)(struct end* end);
  unsigned places;     ///< 0: ALONE where `alone` is set, else ANYWHERE
  int since;           ///< first version to which it applies; 0: all
  int until;           ///< last version to which it applies; 0: all
  bool bare;           ///< loads the plugin itself
  bool on_request;     ///< waits for input from outside, so "all" does not include it
  const char* killed;  ///< the role whose process ends by SIGKILL
  struct setting environment[4];
};

// Each list ends with an entry without a name.
extern const struct rule startup_rules[];
extern const struct rule connecting_rules[];
extern const struct rule transfer_rules[];
extern const struct rule group_rules[];
extern const struct rule memory_rules[];
extern const struct rule closing_rules[];
extern const struct rule thread_rules[];
extern const struct rule lifetime_rules[];
