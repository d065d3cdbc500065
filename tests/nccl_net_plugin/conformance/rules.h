// SPDX-License-Identifier: Apache-2.0
// The contract, rule by rule.
#pragma once

#include "end.h"

/// Where the two ends of a rule can be.
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
  const char* sentence;  ///< what the contract says
  void (*alone)(struct end* end);
  void (*listener)(struct end* end);
  void (*connector)(struct end* end);
  unsigned places;     ///< 0: ALONE where `alone` is set, else ANYWHERE
  int since;           ///< first version that has it; 0: all
  int until;           ///< last version that has it; 0: all
  bool bare;           ///< loads the plugin itself
  bool on_request;     ///< waits for someone outside, so it is no part of "all"
  const char* killed;  ///< the role whose process ends by SIGKILL
  struct setting environment[3];
};

// Each list ends with an entry without name.
extern const struct rule startup_rules[];
extern const struct rule connecting_rules[];
extern const struct rule transfer_rules[];
extern const struct rule group_rules[];
extern const struct rule memory_rules[];
extern const struct rule closing_rules[];
extern const struct rule thread_rules[];
extern const struct rule lifetime_rules[];
