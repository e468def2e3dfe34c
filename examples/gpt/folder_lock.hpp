// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A lock that keeps two runs from writing into one folder.

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace gpt {

/// Locks a folder for this process while the object lives. The lock is on the folder itself and
/// ends with the process, even if it is killed, so that no stale lock remains.
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

  /// False if another process has locked the folder. True on file systems without locks.
  [[nodiscard]] bool taken() const noexcept { return taken_; }

 private:
  int file_;
  bool taken_;
};

}  // namespace gpt
