// SPDX-License-Identifier: Apache-2.0
// A CA and certificates in a folder of their own, by the command openssl.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "path_client/channel.hpp"

namespace paralet::test {

class Authority {
 public:
  Authority() {
    std::string name = std::filesystem::temp_directory_path() / "paralet-tls-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    openssl("req -x509 " + new_key("ca") + " -subj /CN=CA -addext basicConstraints=critical,CA:TRUE");
  }
  ~Authority() { std::filesystem::remove_all(folder_); }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  /// A certificate for a name, such as "IP:10.0.0.1".
  [[nodiscard]] path_client::TlsFiles issue(const std::string& name, const std::string& subject) const {
    openssl("req -x509 -CA " + path("ca.pem") + " -CAkey " + path("ca-key.pem") + " " + new_key(name) +
            " -subj /CN=" + name + " -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=" + subject);
    return {.ca = path("ca.pem"), .certificate = path(name + ".pem"), .key = path(name + "-key.pem")};
  }

 private:
  [[nodiscard]] std::string path(const std::string& file) const { return folder_ / file; }
  [[nodiscard]] std::string new_key(const std::string& name) const {
    return "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + path(name + "-key.pem") + " -out " +
           path(name + ".pem");
  }
  static void openssl(const std::string& words) {
    REQUIRE(std::system(("openssl " + words + " 2>/dev/null").c_str()) == 0);
  }

  std::filesystem::path folder_;
};

}  // namespace paralet::test
