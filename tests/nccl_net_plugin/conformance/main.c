// SPDX-License-Identifier: Apache-2.0
// net-conformance: tests whether an NCCL net plugin keeps NCCL's contract. Prints one line per rule.
//
// The program itself never loads the plugin. The ends of a rule are separate processes, or two threads of one process,
// so a crash or a hang of the plugin fails only one rule.
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "rules.h"

static const char usage[] =
    "usage: net-conformance [--place PLACE] [--timeout SECONDS] [--stuck SECONDS] PLUGIN VERSION RULE|all\n"
    "       net-conformance --role ROLE --rendezvous FD [--timeout SECONDS] [--stuck SECONDS] PLUGIN VERSION RULE\n"
    "       net-conformance --list\n"
    "\n"
    "Tests whether an NCCL net plugin keeps the contract of ncclNetPlugin_vVERSION (8 to 12), rule by rule.\n"
    "\n"
    "  --list             list the rules: name, versions, places and requirement, separated by tabs\n"
    "  --place PLACE      run only in this place: alone, one-process or two-processes (default: all three)\n"
    "  --timeout SECONDS  time limit of every wait (default: 60)\n"
    "  --stuck SECONDS    time limit of every step, in which a call may block (default: 10 s and twice the timeout)\n"
    "  --role ROLE        run one end, listener or connector, of a rule whose other end runs elsewhere\n"
    "  --rendezvous FD    a connected stream socket to the other end\n"
    "\n"
    "The environment configures the plugin. Exit status: 0 all rules passed, 1 some failed, 2 wrong usage.\n"
    "\n"
    "example: PARALET_IFNAME=lo net-conformance build/native/nccl_net_plugin/libnccl-net-paralet.so 12 all\n";

static const struct rule* const lists[] = {startup_rules, connecting_rules, transfer_rules, group_rules,
                                           memory_rules,  closing_rules,    thread_rules,   lifetime_rules};

struct place_name {
  enum place place;
  const char* name;
};
static const struct place_name places[] = {
    {ALONE, "alone"}, {ONE_PROCESS, "one-process"}, {TWO_PROCESSES, "two-processes"}, {TWO_HOSTS, "two-hosts"}};

enum { MAX_ENDS = 2 };

static double stuck_s = 0;  ///< time limit of a step; 0: the default

/// One run of a rule, and the shared memory for the reports of its processes.
struct run {
  const struct rule* rule;
  enum place place;
  const char* plugin;
  int version;
  const char* role;  ///< with TWO_HOSTS
  int rendezvous;
  struct report* reports;  ///< MAX_ENDS of them
};

static unsigned places_of(const struct rule* rule) {
  if (rule->places) return rule->places;
  return rule->alone ? ALONE : ANYWHERE;
}

static bool has_version(const struct rule* rule, int version) {
  return version >= rule->since && (rule->until == 0 || version <= rule->until);
}

static const struct rule* rule_named(const char* name) {
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    for (const struct rule* rule = lists[i]; rule->name; rule++) {
      if (strcmp(rule->name, name) == 0) return rule;
    }
  }
  return NULL;
}

// One end.

static void run_end(const struct rule* rule, struct end* end) {
  set_current_end(end);
  step("start");
  if (strcmp(end->role, "alone") == 0) rule->alone(end);
  if (strcmp(end->role, "listener") == 0) rule->listener(end);
  if (strcmp(end->role, "connector") == 0) rule->connector(end);
}

struct thread {
  const struct rule* rule;
  struct end end;
  pthread_t id;
};

static void* run_end_in_thread(void* argument) {
  struct thread* thread = argument;
  run_end(thread->rule, &thread->end);
  return NULL;
}

static void* do_nothing(void* argument) { return argument; }

/// The process of one end or, with `role` NULL, of both. Ends with exit(), so that LeakSanitizer runs.
static _Noreturn void run_end_in_process(const struct run* run, const char* role, int channel, struct report* report) {
  struct end end = {.role = role ? role : "both ends",
                    .plugin = run->plugin,
                    .net = &(struct net){.version = run->version},
                    .channel = channel,
                    .report = report};
  set_current_end(&end);
  for (const struct setting* setting = run->rule->environment; setting->name; setting++) {
    setenv(setting->name, setting->value, 1);
  }
  // The first thread of a process may start another one (ThreadSanitizer's), which must not count as the plugin's.
  pthread_t first;
  if (pthread_create(&first, NULL, do_nothing, NULL) == 0) pthread_join(first, NULL);
  if (run->rule->bare) {
    run_end(run->rule, &end);
    exit(0);
  }
  struct plugin plugin;
  step("loading the plugin");
  load(&plugin, run->plugin, run->version);
  end.net = &plugin.net;
  expect_success(plugin.net.init(&end.ctx, 0x5eed));
  if (role) {
    run_end(run->rule, &end);
  } else {
    int stream[2];
    expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream) == 0, "cannot create a socket pair: %s",
           strerror(errno));
    struct thread threads[2] = {{.rule = run->rule, .end = end}, {.rule = run->rule, .end = end}};
    for (int i = 0; i < 2; i++) {
      threads[i].end.role = i == 0 ? "listener" : "connector";
      threads[i].end.channel = stream[i];
      threads[i].end.report = &run->reports[i];
      // Each end has its own communicator in versions with contexts.
      if (i == 1 && plugin.net.finalize) expect_success(plugin.net.init(&threads[i].end.ctx, 0x5eee));
      const int error = pthread_create(&threads[i].id, NULL, run_end_in_thread, &threads[i]);
      expect(error == 0, "cannot start a thread: %s", strerror(error));
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i].id, NULL);
    if (plugin.net.finalize) expect_success(plugin.net.finalize(threads[1].end.ctx));
    close(stream[0]);
    close(stream[1]);
  }
  step("finalize and dlclose");
  if (plugin.net.finalize) expect_success(plugin.net.finalize(end.ctx));
  unload(&plugin);
  const char* fault = log_fault();
  expect(!fault, "expected log lines that keep NCCL's contract, but %s", fault);
  exit(0);
}

// The supervising program.

struct child {
  const char* role;  ///< NULL: both
  pid_t pid;         ///< 0: has ended
  struct report* report;
};

static void start(const struct run* run, struct child* child, const char* role, int channel, int others_channel,
                  struct report* report) {
  *child = (struct child){role, fork(), report};
  if (child->pid < 0) {
    fprintf(stderr, "net-conformance: cannot start a process: %s\n", strerror(errno));
    exit(1);
  }
  if (child->pid > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_IGN);
  if (others_channel >= 0) close(others_channel);
  run_end_in_process(run, role, channel, report);
}

static bool ended_well(const struct rule* rule, const struct child* child, int status) {
  if (rule->killed && child->role && strcmp(rule->killed, child->role) == 0) {
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Collects children that have ended. Writes the first failure, if any.
static void reap(const struct rule* rule, struct child* children, char* failure, size_t size) {
  for (int i = 0; i < MAX_ENDS; i++) {
    struct child* child = &children[i];
    int status = 0;
    if (!child->pid || waitpid(child->pid, &status, WNOHANG) != child->pid) continue;
    child->pid = 0;
    if (*failure || ended_well(rule, child, status)) continue;
    const char* role = child->role ? child->role : "both ends";
    for (int k = 0; k < MAX_ENDS; k++) {
      // With both ends in one process, either may have reported.
      const struct report* report = child->role ? child->report : &child->report[k];
      if (report->failures) snprintf(failure, size, "%s", report->failure);
      if (*failure || child->role) break;
    }
    if (!*failure && WIFSIGNALED(status)) {
      snprintf(failure, size, "%s: died of %s (%s)", role, strsignal(WTERMSIG(status)), child->report->step);
    } else if (!*failure) {
      snprintf(failure, size, "%s: exited with status %d (%s)", role, WEXITSTATUS(status), child->report->step);
    }
  }
}

/// Runs a rule. Returns whether it passed.
static bool run_rule(const struct run* run) {
  memset(run->reports, 0, MAX_ENDS * sizeof *run->reports);
  struct child children[MAX_ENDS] = {{0}};
  int stream[2] = {-1, -1};
  switch (run->place) {
    case ALONE:
      start(run, &children[0], "alone", -1, -1, &run->reports[0]);
      break;
    case ONE_PROCESS:
      start(run, &children[0], NULL, -1, -1, &run->reports[0]);
      break;
    case TWO_HOSTS:
      start(run, &children[0], run->role, run->rendezvous, -1, &run->reports[0]);
      break;
    default:
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, stream) != 0) {
        fprintf(stderr, "net-conformance: cannot create a socket pair: %s\n", strerror(errno));
        exit(1);
      }
      start(run, &children[0], "listener", stream[0], stream[1], &run->reports[0]);
      start(run, &children[1], "connector", stream[1], stream[0], &run->reports[1]);
      close(stream[0]);
      close(stream[1]);
  }

  const double start_s = now_s();
  char failure[1500] = "";
  const double limit = stuck_s > 0 ? stuck_s : 2 * timeout_s + 10;
  unsigned long steps = 0;
  double until = now_s() + limit;
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  while (children[0].pid || children[1].pid) {
    sigtimedwait(&child_ended, NULL, &(struct timespec){0, 200000000});
    reap(run->rule, children, failure, sizeof failure);
    unsigned long now = 0;
    for (int i = 0; i < MAX_ENDS; i++) now += __atomic_load_n(&run->reports[i].steps, __ATOMIC_RELAXED);
    if (now != steps) steps = now, until = now_s() + limit;
    if (!*failure && now_s() > until) {
      snprintf(failure, sizeof failure, "hangs: listener: %s; connector: %s", run->reports[0].step,
               run->reports[1].step);
      if (run->place == ALONE) snprintf(failure, sizeof failure, "hangs: %s", run->reports[0].step);
    }
    if (!*failure) continue;
    for (int i = 0; i < MAX_ENDS; i++) {
      if (!children[i].pid) continue;
      kill(children[i].pid, SIGKILL);
      waitpid(children[i].pid, NULL, 0);
      children[i].pid = 0;
    }
  }
  const char* where = "";
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    if (places[i].place == run->place) where = places[i].name;
  }
  if (*failure) {
    printf("v%d %s (%s): FAILED: %s\n", run->version, run->rule->name, where, failure);
  } else {
    printf("v%d %s (%s): ok, %.1f s\n", run->version, run->rule->name, where, now_s() - start_s);
  }
  fflush(stdout);
  return !*failure;
}

static void list(void) {
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    for (const struct rule* rule = lists[i]; rule->name; rule++) {
      printf("%s\t%d-%d\t", rule->name, rule->since ? rule->since : FIRST_VERSION,
             rule->until ? rule->until : LAST_VERSION);
      if (rule->on_request) printf("on-request,");
      const char* separator = "";
      for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
        if (!(places_of(rule) & places[k].place)) continue;
        printf("%s%s", separator, places[k].name);
        separator = ",";
      }
      printf("\t%s\n", rule->sentence);
    }
  }
}

static _Noreturn void usage_error(const char* what, const char* value) {
  fprintf(stderr, "net-conformance: %s%s; see --help\n", what, value);
  exit(2);
}

static double number(const char* text, const char* what, double least, double most) {
  char* rest = NULL;
  const double value = strtod(text, &rest);
  if (rest == text || *rest || !(value >= least && value <= most)) usage_error(what, text);
  return value;
}

int main(int argc, char** argv) {
  static const struct option options[] = {
      {"list", no_argument, NULL, 'l'},          {"place", required_argument, NULL, 'p'},
      {"timeout", required_argument, NULL, 't'}, {"stuck", required_argument, NULL, 's'},
      {"role", required_argument, NULL, 'r'},    {"rendezvous", required_argument, NULL, 'v'},
      {"help", no_argument, NULL, 'h'},          {0}};
  struct run run = {.rendezvous = -1};
  unsigned wanted = ALONE | ONE_PROCESS | TWO_PROCESSES;
  int option = 0;
  while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
    switch (option) {
      case 'l':
        list();
        return 0;
      case 'h':
        fputs(usage, stdout);
        return 0;
      case 'p':
        wanted = 0;
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
          if (strcmp(places[i].name, optarg) == 0 && places[i].place != TWO_HOSTS) wanted = places[i].place;
        }
        if (!wanted) usage_error("--place is alone, one-process or two-processes, not ", optarg);
        break;
      case 't':
        timeout_s = number(optarg, "--timeout is a number of seconds from 0.1 to 3600, not ", 0.1, 3600);
        break;
      case 's':
        stuck_s = number(optarg, "--stuck is a number of seconds from 0.1 to 3600, not ", 0.1, 3600);
        break;
      case 'r':
        if (strcmp(optarg, "listener") != 0 && strcmp(optarg, "connector") != 0) {
          usage_error("--role is listener or connector, not ", optarg);
        }
        run.role = optarg;
        break;
      case 'v':
        run.rendezvous = (int)number(optarg, "--rendezvous is an open file descriptor, not ", 0, 1 << 20);
        break;
      default:
        usage_error("unknown option or missing value", "");
    }
  }
  if (argc - optind != 3) usage_error("PLUGIN, VERSION and RULE are required", "");
  if ((run.role == NULL) != (run.rendezvous < 0)) usage_error("--role and --rendezvous require each other", "");
  run.plugin = argv[optind];
  run.version = (int)number(argv[optind + 1], "VERSION is 8 to 12, not ", FIRST_VERSION, LAST_VERSION);
  const char* rule_name = argv[optind + 2];
  const bool all = strcmp(rule_name, "all") == 0;
  if (!all && !rule_named(rule_name)) usage_error("there is no rule ", rule_name);
  if (all && run.role) usage_error("--role requires a single RULE, not ", rule_name);
  if (access(run.plugin, R_OK) != 0) usage_error("there is no plugin at ", run.plugin);
  const char* difference = layout_difference();
  if (difference) {
    printf("layout: FAILED: %s in paralet_nccl_net.h differs from NCCL's\n", difference);
    return 1;
  }

  run.reports = mmap(NULL, MAX_ENDS * sizeof *run.reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (run.reports == MAP_FAILED) usage_error("cannot map shared memory", "");
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, NULL);

  if (run.role) wanted = TWO_HOSTS;
  int ran = 0;
  int failed = 0;
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    for (run.rule = lists[i]; run.rule->name; run.rule++) {
      if (all ? run.rule->on_request : strcmp(run.rule->name, rule_name) != 0) continue;
      if (!has_version(run.rule, run.version)) continue;
      for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
        run.place = places[k].place;
        if (!(places_of(run.rule) & wanted & run.place)) continue;
        ran++;
        failed += !run_rule(&run);
      }
    }
  }
  if (ran == 0) usage_error("this version and place do not have the rule ", rule_name);
  return failed > 0;
}
