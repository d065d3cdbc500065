// SPDX-License-Identifier: Apache-2.0
// TLS in a program that exports functions by the names of OpenSSL's, as one with a static BoringSSL may: the client
// calls OpenSSL's own, and so does OpenSSL.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "certificates.hpp"
#include "path_client/tls_channel.hpp"

extern "C" {
#define PARALET_FOREIGN(name) \
  __attribute__((visibility("default"))) void name() { std::abort(); }
PARALET_FOREIGN(BIO_new)
PARALET_FOREIGN(CRYPTO_malloc)
PARALET_FOREIGN(CRYPTO_zalloc)
PARALET_FOREIGN(ERR_clear_error)
PARALET_FOREIGN(EVP_MD_CTX_new)
PARALET_FOREIGN(OPENSSL_init_crypto)
PARALET_FOREIGN(SSL_new)
PARALET_FOREIGN(X509_STORE_new)
#undef PARALET_FOREIGN
}

TEST_CASE("functions of another OpenSSL in the program are not called") {
  const paralet::test::Authority authority;
  const auto channel = paralet::path_client::open_tls(authority.issue("host", "IP:10.0.0.1"), "10.0.0.9");
  std::string lines;
  std::string bytes;
  channel->send(lines, bytes);
  CHECK(bytes.size() > 100);
  CHECK(bytes.front() == 0x16);
}
