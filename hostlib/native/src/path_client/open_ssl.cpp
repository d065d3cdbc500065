// SPDX-License-Identifier: Apache-2.0
#include "path_client/open_ssl.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>

#include "base/errors.hpp"

namespace paralet::path_client {
namespace {

constexpr const char* kLibrary = "libssl.so.3";
constexpr const char* kOpenSslRemedy = "install OpenSSL 3 (Debian: apt-get install libssl3)";

// RTLD_DEEPBIND: OpenSSL finds its own functions, also in a program that exports those of another OpenSSL or BoringSSL
// which it was linked with. The sanitizers refuse it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOwnFunctions = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr int kOwnFunctions = 0;
#else
constexpr int kOwnFunctions = RTLD_DEEPBIND;
#endif
#else
constexpr int kOwnFunctions = RTLD_DEEPBIND;
#endif

struct Exit {
  std::shared_mutex calls;
  bool begun = false;
};

Exit& exit_state() {
  static auto* const state = new Exit;  // outlives all threads
  return *state;
}

/// Its destructor runs before OpenSSL's own clean-up, which was registered earlier, and waits for calls under way.
struct CloseAtExit {
  CloseAtExit() { exit_state(); }
  ~CloseAtExit() {
    const std::unique_lock lock(exit_state().calls);
    exit_state().begun = true;
  }
  CloseAtExit(const CloseAtExit&) = delete;
  CloseAtExit& operator=(const CloseAtExit&) = delete;
};

/// A forked child has none of the threads whose calls were under way, so nothing would ever end these.
void forget_calls() { new (&exit_state().calls) std::shared_mutex; }

template <typename Function>
void require_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(std::string(kLibrary) + " has no function " + name + ": " + kOpenSslRemedy);
  }
}

OpenSsl open_library() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | kOwnFunctions);
  if (library == nullptr) {
    throw DeviceError(std::string("TLS to a path service needs ") + kLibrary + ": " + kOpenSslRemedy);
  }
  OpenSsl out;
#define PARALET_OPENSSL(name) require_function(library, #name, out.name)
  PARALET_OPENSSL(OPENSSL_init_ssl);
  PARALET_OPENSSL(TLS_client_method);
  PARALET_OPENSSL(SSL_CTX_new);
  PARALET_OPENSSL(SSL_CTX_free);
  PARALET_OPENSSL(SSL_CTX_ctrl);
  PARALET_OPENSSL(SSL_CTX_set_verify);
  PARALET_OPENSSL(SSL_CTX_set_default_passwd_cb);
  PARALET_OPENSSL(SSL_CTX_load_verify_file);
  PARALET_OPENSSL(SSL_CTX_use_certificate_chain_file);
  PARALET_OPENSSL(SSL_CTX_use_PrivateKey_file);
  PARALET_OPENSSL(SSL_new);
  PARALET_OPENSSL(SSL_free);
  PARALET_OPENSSL(SSL_set_bio);
  PARALET_OPENSSL(SSL_set_connect_state);
  PARALET_OPENSSL(SSL_set1_host);
  PARALET_OPENSSL(SSL_get0_param);
  PARALET_OPENSSL(X509_VERIFY_PARAM_set1_ip_asc);
  PARALET_OPENSSL(SSL_do_handshake);
  PARALET_OPENSSL(SSL_read);
  PARALET_OPENSSL(SSL_write);
  PARALET_OPENSSL(SSL_get_error);
  PARALET_OPENSSL(SSL_get_verify_result);
  PARALET_OPENSSL(X509_verify_cert_error_string);
  PARALET_OPENSSL(BIO_s_mem);
  PARALET_OPENSSL(BIO_new);
  PARALET_OPENSSL(BIO_free);
  PARALET_OPENSSL(BIO_read);
  PARALET_OPENSSL(BIO_write);
  PARALET_OPENSSL(ERR_get_error);
  PARALET_OPENSSL(ERR_clear_error);
  PARALET_OPENSSL(ERR_reason_error_string);
#undef PARALET_OPENSSL
  // Without a clean-up of its own, where the program has not asked for one before.
  if (out.OPENSSL_init_ssl(OpenSsl::kNoAtExit, nullptr) != 1)
    throw DeviceError(std::string(kLibrary) + " does not start");
  return out;
}

}  // namespace

const OpenSsl& OpenSsl::load() {
  static const OpenSsl library = open_library();
  static const CloseAtExit close_at_exit;
  [[maybe_unused]] static const int at_fork = ::pthread_atfork(nullptr, nullptr, &forget_calls);
  return library;
}

UntilExit::UntilExit() {
  exit_state().calls.lock_shared();
  if (exit_state().begun) {
    exit_state().calls.unlock_shared();
    throw DeviceError("the process is exiting");
  }
}

UntilExit::~UntilExit() { exit_state().calls.unlock_shared(); }

}  // namespace paralet::path_client
