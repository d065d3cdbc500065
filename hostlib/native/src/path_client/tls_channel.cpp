// SPDX-License-Identifier: Apache-2.0
#include "path_client/tls_channel.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/ip_address.hpp"
#include "path_client/open_ssl.hpp"

namespace paralet::path_client {
namespace {

constexpr std::size_t kRecord = 16384;  // of TLS, without its header

struct FreeContext {
  void operator()(ssl_ctx_st* context) const { OpenSsl::load().SSL_CTX_free(context); }
};
using Context = std::unique_ptr<ssl_ctx_st, FreeContext>;

/// Why the last call failed, in OpenSSL's words. Forgets it.
std::string reason() {
  const OpenSsl& ssl = OpenSsl::load();
  const unsigned long first = ssl.ERR_get_error();
  ssl.ERR_clear_error();
  const char* text = ssl.ERR_reason_error_string(first);
  return text == nullptr ? "no reason is known" : text;
}

/// A pipe is refused: opening it waits for its writer, and the next connection would find it empty.
void check_readable(const std::string& path, const char* what) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw DeviceError(std::string("the ") + what + " " + path + " is not a regular file");
  }
  if (::access(path.c_str(), R_OK) != 0) {
    throw DeviceError(std::string("the ") + what + " " + path + " cannot be read: " + std::strerror(errno));
  }
}

/// A key of root's may be read by its group, as systemd's credentials and secrets of Kubernetes are.
void check_private(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;
  const bool by_group = status.st_uid == 0 && ::geteuid() != 0;
  if ((status.st_mode & (by_group ? 037U : 077U)) != 0) {
    throw DeviceError("the key file " + path + " is open to others: make it your own with chmod 600");
  }
}

/// Nobody is asked for a password.
int no_password(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*user*/) { return -1; }

Context read_files(const TlsFiles& files) {
  const OpenSsl& ssl = OpenSsl::load();
  const auto refuse = [](const std::string& what) { throw DeviceError(what + ": " + reason()); };
  check_readable(files.ca, "file of CA certificates");
  check_readable(files.certificate, "certificate");
  check_readable(files.key, "key file");
  check_private(files.key);
  Context context(ssl.SSL_CTX_new(ssl.TLS_client_method()));
  if (!context) refuse("TLS cannot be used");
  ssl.SSL_CTX_ctrl(context.get(), OpenSsl::kSetLeastVersion, OpenSsl::kTls13, nullptr);
  ssl.SSL_CTX_set_verify(context.get(), OpenSsl::kVerifyPeer, nullptr);
  ssl.SSL_CTX_set_default_passwd_cb(context.get(), &no_password);
  if (ssl.SSL_CTX_load_verify_file(context.get(), files.ca.c_str()) != 1) {
    refuse("the file of CA certificates " + files.ca + " has none");
  }
  if (ssl.SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
    refuse("the certificate " + files.certificate + " cannot be used");
  }
  if (ssl.SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), OpenSsl::kPem) != 1) {
    refuse("the key " + files.key + " cannot be used with the certificate " + files.certificate);
  }
  return context;
}

class TlsChannel final : public Channel {
 public:
  TlsChannel(const TlsFiles& files, std::string host) : ca_(files.ca), host_(std::move(host)) {
    const OpenSsl& ssl = OpenSsl::load();
    const UntilExit until_exit;
    const Context context = read_files(files);
    session_ = ssl.SSL_new(context.get());
    received_ = ssl.BIO_new(ssl.BIO_s_mem());
    to_send_ = ssl.BIO_new(ssl.BIO_s_mem());
    if (session_ == nullptr || received_ == nullptr || to_send_ == nullptr || !expect_host()) {
      if (session_ != nullptr) ssl.SSL_free(session_);
      if (received_ != nullptr) ssl.BIO_free(received_);
      if (to_send_ != nullptr) ssl.BIO_free(to_send_);
      throw DeviceError("TLS cannot be used: " + reason());
    }
    ssl.SSL_set_bio(session_, received_, to_send_);  // which it frees
    ssl.SSL_set_connect_state(session_);
  }
  ~TlsChannel() override {
    try {
      const UntilExit until_exit;
      OpenSsl::load().SSL_free(session_);
    } catch (const DeviceError&) {  // the process is exiting
    }
  }
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  void receive(std::string_view bytes, std::string& said) override {
    const OpenSsl& ssl = OpenSsl::load();
    const Calls calls;
    if (!heard_ && !bytes.empty()) check_first(static_cast<unsigned char>(bytes.front()));
    ssl.BIO_write(received_, bytes.data(), static_cast<int>(bytes.size()));  // takes all: it is memory
    if (!open_ && !shake_hands()) return;
    std::array<char, kRecord> chunk;
    int got = 0;
    while ((got = ssl.SSL_read(session_, chunk.data(), chunk.size())) > 0) {
      said.append(chunk.data(), static_cast<std::size_t>(got));
    }
    check(got);
  }

  void send(std::string& lines, std::string& bytes) override {
    const OpenSsl& ssl = OpenSsl::load();
    const Calls calls;
    if (open_ || shake_hands()) {
      while (!lines.empty()) {
        const int sent = ssl.SSL_write(session_, lines.data(), static_cast<int>(std::min(lines.size(), kRecord)));
        check(sent);
        if (sent <= 0) break;
        lines.erase(0, static_cast<std::size_t>(sent));
      }
    }
    take(bytes);
  }

 private:
  /// Around calls of OpenSSL. Errors are per thread: an old one must not be taken for that of the next call.
  struct Calls {
    Calls() try { OpenSsl::load().ERR_clear_error(); } catch (const DeviceError& error) {
      throw ChannelError(error.what());
    }
    UntilExit until_exit;
  };

  bool expect_host() {
    const OpenSsl& ssl = OpenSsl::load();
    if (parse_address(host_)) {
      return ssl.X509_VERIFY_PARAM_set1_ip_asc(ssl.SSL_get0_param(session_), host_.c_str()) == 1;
    }
    return ssl.SSL_set1_host(session_, host_.c_str()) == 1;
  }

  /// A service without TLS answers in JSON; a TLS record begins with its type.
  void check_first(unsigned char byte) {
    heard_ = true;
    if (byte < 20 || byte > 24) {
      throw ChannelError("it does not speak TLS: start it with --tls-certificate, or leave the certificates out here");
    }
  }

  /// Whether it is done.
  bool shake_hands() {
    if (failed_) return false;
    const int done = OpenSsl::load().SSL_do_handshake(session_);
    if (done == 1) return open_ = true;
    check(done);
    return false;
  }

  void take(std::string& bytes) {
    std::array<char, 4096> chunk;
    int got = 0;
    while ((got = OpenSsl::load().BIO_read(to_send_, chunk.data(), chunk.size())) > 0) {
      bytes.append(chunk.data(), static_cast<std::size_t>(got));
    }
  }

  /// Throws ChannelError if a call has failed and needs no more bytes.
  void check(int returned) {
    const OpenSsl& ssl = OpenSsl::load();
    if (returned > 0) return;
    const int error = ssl.SSL_get_error(session_, returned);
    if (error == OpenSsl::kWantRead || error == OpenSsl::kClosed)
      return;  // where it has closed, the end of the connection follows
    failed_ = true;
    open_ = false;
    throw ChannelError(why());
  }

  [[nodiscard]] std::string why() const {
    const OpenSsl& ssl = OpenSsl::load();
    if (const long wrong = ssl.SSL_get_verify_result(session_); wrong != 0) return refused_certificate(wrong);
    const unsigned long first = ssl.ERR_get_error();
    ssl.ERR_clear_error();
    const int code = OpenSsl::reason_of(first);
    const char* known = ssl.ERR_reason_error_string(first);
    const std::string text = known == nullptr ? "no reason is known" : known;
    if (code <= OpenSsl::kFirstAlert) return "TLS failed: " + text;
    switch (code - OpenSsl::kFirstAlert) {
      case OpenSsl::kBadCertificate:
        return "it refuses this host's certificate";
      case OpenSsl::kUnsupportedCertificate:
        return "it refuses this host's certificate, which is not for clients (extendedKeyUsage)";
      case OpenSsl::kCertificateExpired:
        return "it refuses this host's certificate, which has expired";
      case OpenSsl::kUnknownCa:
        return "it refuses this host's certificate, which is not from its CA";
      case OpenSsl::kProtocolVersion:
        return "it does not speak TLS 1.3";
      case OpenSsl::kCertificateRequired:
        return "it refuses a host without a certificate";
      default:
        return "it ended TLS: " + text;
    }
  }

  [[nodiscard]] std::string refused_certificate(long wrong) const {
    switch (wrong) {
      case OpenSsl::kNotYetValid:
        return "its certificate is not valid yet";
      case OpenSsl::kHasExpired:
        return "its certificate has expired";
      case OpenSsl::kSelfSigned:
      case OpenSsl::kSelfSignedInChain:
      case OpenSsl::kNoLocalIssuer:
      case OpenSsl::kLeafNotVerified:
        return "its certificate is not from a CA in " + ca_;
      case OpenSsl::kHostNameMismatch:
      case OpenSsl::kIpAddressMismatch:
        return "its certificate is not for " + host_;
      default:
        return std::string("its certificate is refused: ") + OpenSsl::load().X509_verify_cert_error_string(wrong);
    }
  }

  std::string ca_;
  std::string host_;
  ssl_st* session_ = nullptr;
  bio_st* received_ = nullptr;  ///< bytes from the socket
  bio_st* to_send_ = nullptr;   ///< bytes for the socket
  bool heard_ = false;          ///< a byte of the service
  bool open_ = false;           ///< lines may be sent
  bool failed_ = false;
};

}  // namespace

void check_tls(const TlsFiles& files) {
  OpenSsl::load();
  const UntilExit until_exit;
  read_files(files);
}

std::unique_ptr<Channel> open_tls(const TlsFiles& files, const std::string& host) {
  return std::make_unique<TlsChannel>(files, host);
}

}  // namespace paralet::path_client
