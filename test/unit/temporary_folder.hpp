// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A folder of a test's own, which goes with the object.

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <stdlib.h>

class TemporaryFolder {
 public:
  /// In memory where that can be had, since tests sync what they write.
  TemporaryFolder() {
    namespace files = std::filesystem;
    auto const above = files::exists("/dev/shm") ? "/dev/shm" : files::temp_directory_path();
    path_ = (above / "stagger-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr)
      throw std::runtime_error("no folder can be made in " + above.string());
  }
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string const& path() const { return path_; }
  [[nodiscard]] std::string operator/(std::string const& name) const { return path_ + "/" + name; }
  /// Of its files, sorted.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (auto const& entry : std::filesystem::directory_iterator(path_))
      all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::string path_;
};
