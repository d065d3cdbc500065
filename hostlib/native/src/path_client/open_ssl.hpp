// SPDX-License-Identifier: Apache-2.0
// The functions of OpenSSL 3 that the path client calls. libssl is loaded when they are first needed: the engine has
// no dependency on it, and devices without TLS never load it. The declarations are ours, so the build needs no header;
// tests/path_client/test_open_ssl.cpp compares them with OpenSSL's own.
#pragma once

#include <cstdint>

struct bio_method_st;
struct bio_st;
struct ossl_init_settings_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct ssl_st;
struct x509_store_ctx_st;
struct X509_VERIFY_PARAM_st;

namespace paralet::path_client {

/// Field names are those of the functions.
struct OpenSsl {
  int (*OPENSSL_init_ssl)(std::uint64_t, const ossl_init_settings_st*) = nullptr;
  const ssl_method_st* (*TLS_client_method)() = nullptr;

  ssl_ctx_st* (*SSL_CTX_new)(const ssl_method_st*) = nullptr;
  void (*SSL_CTX_free)(ssl_ctx_st*) = nullptr;
  long (*SSL_CTX_ctrl)(ssl_ctx_st*, int, long, void*) = nullptr;
  void (*SSL_CTX_set_verify)(ssl_ctx_st*, int, int (*)(int, x509_store_ctx_st*)) = nullptr;
  void (*SSL_CTX_set_default_passwd_cb)(ssl_ctx_st*, int (*)(char*, int, int, void*)) = nullptr;
  int (*SSL_CTX_load_verify_file)(ssl_ctx_st*, const char*) = nullptr;
  int (*SSL_CTX_use_certificate_chain_file)(ssl_ctx_st*, const char*) = nullptr;
  int (*SSL_CTX_use_PrivateKey_file)(ssl_ctx_st*, const char*, int) = nullptr;

  ssl_st* (*SSL_new)(ssl_ctx_st*) = nullptr;
  void (*SSL_free)(ssl_st*) = nullptr;
  void (*SSL_set_bio)(ssl_st*, bio_st*, bio_st*) = nullptr;
  void (*SSL_set_connect_state)(ssl_st*) = nullptr;
  int (*SSL_set1_host)(ssl_st*, const char*) = nullptr;
  X509_VERIFY_PARAM_st* (*SSL_get0_param)(ssl_st*) = nullptr;
  int (*X509_VERIFY_PARAM_set1_ip_asc)(X509_VERIFY_PARAM_st*, const char*) = nullptr;
  int (*SSL_do_handshake)(ssl_st*) = nullptr;
  int (*SSL_read)(ssl_st*, void*, int) = nullptr;
  int (*SSL_write)(ssl_st*, const void*, int) = nullptr;
  int (*SSL_get_error)(const ssl_st*, int) = nullptr;
  long (*SSL_get_verify_result)(const ssl_st*) = nullptr;
  const char* (*X509_verify_cert_error_string)(long) = nullptr;

  const bio_method_st* (*BIO_s_mem)() = nullptr;
  bio_st* (*BIO_new)(const bio_method_st*) = nullptr;
  int (*BIO_free)(bio_st*) = nullptr;
  int (*BIO_read)(bio_st*, void*, int) = nullptr;
  int (*BIO_write)(bio_st*, const void*, int) = nullptr;

  unsigned long (*ERR_get_error)() = nullptr;
  void (*ERR_clear_error)() = nullptr;
  const char* (*ERR_reason_error_string)(unsigned long) = nullptr;

  /// Loads the library once; it stays. Throws DeviceError without OpenSSL 3.
  static const OpenSsl& load();

  // Constants of OpenSSL's headers.
  static constexpr int kSetLeastVersion = 123;         ///< SSL_CTRL_SET_MIN_PROTO_VERSION
  static constexpr long kTls13 = 0x0304;               ///< TLS1_3_VERSION
  static constexpr int kVerifyPeer = 1;                ///< SSL_VERIFY_PEER
  static constexpr int kPem = 1;                       ///< SSL_FILETYPE_PEM
  static constexpr int kWantRead = 2;                  ///< SSL_ERROR_WANT_READ
  static constexpr int kClosed = 6;                    ///< SSL_ERROR_ZERO_RETURN
  static constexpr std::uint64_t kNoAtExit = 0x80000;  ///< OPENSSL_INIT_NO_ATEXIT
  static constexpr int kFirstAlert = 1000;             ///< SSL_AD_REASON_OFFSET: a reason above it is that of an alert
  /// The reason of an error, as ERR_GET_REASON.
  static constexpr int reason_of(unsigned long error) { return static_cast<int>(error & 0x7FFFFF); }

  /// Why the other side ended TLS (RFC 8446, section 6).
  enum Alert : int {
    kBadCertificate = 42,
    kUnsupportedCertificate = 43,
    kCertificateExpired = 45,
    kUnknownCa = 48,
    kProtocolVersion = 70,
    kCertificateRequired = 116,
  };
  /// Why a certificate is refused: X509_V_ERR_*.
  enum Verification : long {
    kNotYetValid = 9,
    kHasExpired = 10,
    kSelfSigned = 18,
    kSelfSignedInChain = 19,
    kNoLocalIssuer = 20,
    kLeafNotVerified = 21,
    kHostNameMismatch = 62,
    kIpAddressMismatch = 64,
  };
};

/// Held during calls of OpenSSL, which cleans up when the process exits, while the client's thread may still run.
/// Several threads may hold it.
class UntilExit {
 public:
  /// Throws DeviceError when the process is exiting.
  UntilExit();
  ~UntilExit();
  UntilExit(const UntilExit&) = delete;
  UntilExit& operator=(const UntilExit&) = delete;
};

}  // namespace paralet::path_client
