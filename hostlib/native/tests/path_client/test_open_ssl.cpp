// SPDX-License-Identifier: Apache-2.0
// The declarations of path_client/open_ssl.hpp against OpenSSL's own headers.
#include <doctest/doctest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <thread>
#include <type_traits>

#include "path_client/open_ssl.hpp"

namespace paralet::path_client {
namespace {

#define PARALET_SAME(name) static_assert(std::is_same_v<decltype(OpenSsl::name), decltype(&::name)>)
PARALET_SAME(OPENSSL_init_ssl);
PARALET_SAME(TLS_client_method);
PARALET_SAME(SSL_CTX_new);
PARALET_SAME(SSL_CTX_free);
PARALET_SAME(SSL_CTX_ctrl);
PARALET_SAME(SSL_CTX_set_verify);
PARALET_SAME(SSL_CTX_set_default_passwd_cb);
PARALET_SAME(SSL_CTX_load_verify_file);
PARALET_SAME(SSL_CTX_use_certificate_chain_file);
PARALET_SAME(SSL_CTX_use_PrivateKey_file);
PARALET_SAME(SSL_new);
PARALET_SAME(SSL_free);
PARALET_SAME(SSL_set_bio);
PARALET_SAME(SSL_set_connect_state);
PARALET_SAME(SSL_set1_host);
PARALET_SAME(SSL_get0_param);
PARALET_SAME(X509_VERIFY_PARAM_set1_ip_asc);
PARALET_SAME(SSL_do_handshake);
PARALET_SAME(SSL_read);
PARALET_SAME(SSL_write);
PARALET_SAME(SSL_get_error);
PARALET_SAME(SSL_get_verify_result);
PARALET_SAME(X509_verify_cert_error_string);
PARALET_SAME(BIO_s_mem);
PARALET_SAME(BIO_new);
PARALET_SAME(BIO_free);
PARALET_SAME(BIO_read);
PARALET_SAME(BIO_write);
PARALET_SAME(ERR_get_error);
PARALET_SAME(ERR_clear_error);
PARALET_SAME(ERR_reason_error_string);
#undef PARALET_SAME

static_assert(OpenSsl::kSetLeastVersion == SSL_CTRL_SET_MIN_PROTO_VERSION);
static_assert(OpenSsl::kTls13 == TLS1_3_VERSION);
static_assert(OpenSsl::kVerifyPeer == SSL_VERIFY_PEER);
static_assert(OpenSsl::kPem == SSL_FILETYPE_PEM);
static_assert(OpenSsl::kWantRead == SSL_ERROR_WANT_READ);
static_assert(OpenSsl::kClosed == SSL_ERROR_ZERO_RETURN);
static_assert(OpenSsl::kNoAtExit == OPENSSL_INIT_NO_ATEXIT);
static_assert(OpenSsl::kFirstAlert == SSL_AD_REASON_OFFSET);
static_assert(OpenSsl::kBadCertificate == SSL_AD_BAD_CERTIFICATE);
static_assert(OpenSsl::kUnsupportedCertificate == SSL_AD_UNSUPPORTED_CERTIFICATE);
static_assert(OpenSsl::kCertificateExpired == SSL_AD_CERTIFICATE_EXPIRED);
static_assert(OpenSsl::kUnknownCa == SSL_AD_UNKNOWN_CA);
static_assert(OpenSsl::kProtocolVersion == SSL_AD_PROTOCOL_VERSION);
static_assert(OpenSsl::kCertificateRequired == SSL_AD_CERTIFICATE_REQUIRED);
static_assert(OpenSsl::kNotYetValid == X509_V_ERR_CERT_NOT_YET_VALID);
static_assert(OpenSsl::kHasExpired == X509_V_ERR_CERT_HAS_EXPIRED);
static_assert(OpenSsl::kSelfSigned == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT);
static_assert(OpenSsl::kSelfSignedInChain == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
static_assert(OpenSsl::kNoLocalIssuer == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY);
static_assert(OpenSsl::kLeafNotVerified == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE);
static_assert(OpenSsl::kHostNameMismatch == X509_V_ERR_HOSTNAME_MISMATCH);
static_assert(OpenSsl::kIpAddressMismatch == X509_V_ERR_IP_ADDRESS_MISMATCH);

TEST_CASE("the library that is loaded has all functions that the headers declare") {
  CHECK_NOTHROW(OpenSsl::load());
  CHECK(OpenSsl::reason_of(ERR_PACK(ERR_LIB_SSL, 0, SSL_R_TLSV1_ALERT_UNKNOWN_CA)) ==
        OpenSsl::kFirstAlert + OpenSsl::kUnknownCa);
}

TEST_CASE("a child that is forked during calls of OpenSSL does not wait for them at its exit") {
  OpenSsl::load();
  std::promise<void> begun;
  std::promise<void> may_end;
  std::thread calls([&] {
    const UntilExit until_exit;
    begun.set_value();
    may_end.get_future().wait();
  });
  begun.get_future().wait();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // ends it if it waits
    std::exit(0);
  }
  may_end.set_value();
  calls.join();
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK_NOTHROW(UntilExit());
}

}  // namespace
}  // namespace paralet::path_client
