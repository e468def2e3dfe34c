// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Keeps two runs from writing into one folder.

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace gpt {

/// A folder that is this process's own for as long as this lives. The lock is on the folder itself
/// and ends with the process, however that ends: nothing is left behind.
class FolderLock {
 public:
  explicit FolderLock(std::string const& folder)
      : file_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
        taken_(file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {}
  FolderLock(FolderLock const&) = delete;
  FolderLock& operator=(FolderLock const&) = delete;
  ~FolderLock() {
    if (file_ >= 0) ::close(file_);
  }

  /// False: another process has the folder. True also on file systems that know no locks.
  [[nodiscard]] bool taken() const noexcept { return taken_; }

 private:
  int file_;
  bool taken_;
};

}  // namespace gpt
