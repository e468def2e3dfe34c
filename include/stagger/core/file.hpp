// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Files that are written completely or not at all.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <stagger/core/error.hpp>

namespace stagger {

namespace detail {

/// Owns an open file, folder or socket.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  Descriptor(char const* path, int flags, ::mode_t mode = 0644)
      : number_(::open(path, flags | O_CLOEXEC, mode)) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }
  /// @return false, with `errno`, if the system reports an error
  bool close() noexcept { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0; }
  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

/// What to do where the system says that something cannot be written.
[[nodiscard]] inline char const* write_remedy(int reason) noexcept {
  switch (reason) {
    case EACCES:
    case EPERM:
    case EROFS:
      return "name another folder, one that you may write to";
    case ENOENT:
    case ENOTDIR:
      return "create the folder first, or name another folder";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "make room, or name another folder, on another disk";
    default:
      return "name another folder";
  }
}

/// Removes a temporary file of a `WholeFile`, unless a process still writes it. It also stays where
/// the file system has no locks, which does no harm.
inline void remove_abandoned(std::string const& temporary) noexcept {
  Descriptor const file(temporary.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(temporary.c_str());
}

}  // namespace detail

/// A file that appears under its name only when it is complete and on the disk.
///
/// Text goes to a temporary file in the same folder; `commit` syncs it, renames it over the name
/// and syncs the folder. Until then, and after any error, an existing file of that name stays as it
/// was. After an error the temporary file is removed; only a process that dies leaves it behind, as
/// `.NAME.PID-N.tmp`. As long as it is written it is locked, so that others see whether its process
/// lives. A symbolic link is followed, so that the link stays. A name that is no plain
/// file (`/dev/stdout`, a pipe) cannot be replaced and is written in place.
class WholeFile {
 public:
  /// @throws Error io, naming path, reason and remedy, if the folder cannot be written to
  explicit WholeFile(std::string path) : path_(std::move(path)), target_(path_) {
    struct stat status{};
    bool const exists = ::stat(path_.c_str(), &status) == 0;
    if (exists && S_ISDIR(status.st_mode)) fail("it is a folder", "give the name of a file");
    if (exists && !S_ISREG(status.st_mode)) {
      in_place_ = true;
      file_ = detail::Descriptor(path_.c_str(), O_WRONLY);
      if (!file_) fail_errno();
      return;
    }
    if (!exists && ::lstat(path_.c_str(), &status) == 0)
      fail("it is a link to nothing", "create what it leads to, or name that file itself");
    if (exists) {
      if (char* const real = ::realpath(path_.c_str(), nullptr)) {
        target_ = real;
        std::free(real);
      }
    }
    open_temporary();
    if (exists && ::fchmod(file_.get(), status.st_mode & 07777U) != 0) fail_errno();
  }
  WholeFile(WholeFile const&) = delete;
  WholeFile& operator=(WholeFile const&) = delete;
  ~WholeFile() { discard(); }

  /// Appends text.
  /// @throws Error io if it does not fit or cannot be written; the file is then abandoned
  void write(std::string_view text) {
    while (!text.empty()) {
      ssize_t const n = ::write(file_.get(), text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail_errno();
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  /// Makes the file visible under its name. Nothing can be written afterwards.
  /// @throws Error io if it could not be written to the disk; the previous file is then unchanged
  void commit() {
    if (!in_place_ && ::fsync(file_.get()) != 0) fail_errno();
    // Locked until it has its name: a second descriptor of the same open file keeps its lock.
    detail::Descriptor const locked(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    if (!file_.close() && errno != EINTR) fail_errno();
    if (in_place_) return;
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
      int const reason = errno;
      if (reason == ENOENT && ::access((folder() + ".").c_str(), F_OK) == 0)
        fail("another program has removed its temporary file",
             "let one program at a time write into that folder");
      fail(std::strerror(reason), detail::write_remedy(reason));
    }
    temporary_.clear();
    sync_folder();
  }

 private:
  /// The folder of the file, with a slash at its end; empty: the current one.
  [[nodiscard]] std::string folder() const { return target_.substr(0, target_.rfind('/') + 1); }

  void open_temporary() {
    std::string const in = folder();
    std::string const name = target_.substr(in.size());
    if (name.empty()) fail("that names no file", "give the name of a file");
    std::string const before = in + text(".", name.substr(0, 100), ".", ::getpid(), "-");
    for (int attempt = 0; attempt < 1000; ++attempt) {
      temporary_ = before + std::to_string(attempt) + ".tmp";
      file_ = detail::Descriptor(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
      if (file_ && is_locked()) return;
      if (!file_ && errno != EEXIST) break;
    }
    temporary_.clear();
    fail_errno();
  }

  /// Locks the temporary file, if the file system has locks.
  /// @return false if another process has removed it before, as one that nobody writes
  [[nodiscard]] bool is_locked() const {
    while (::flock(file_.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat status{};
    return ::fstat(file_.get(), &status) != 0 || status.st_nlink != 0;
  }

  /// Syncs the folder, without which a renamed file may be lost in a crash.
  void sync_folder() {
    detail::Descriptor const opened((folder() + ".").c_str(), O_RDONLY | O_DIRECTORY);
    if (!opened) return;  // a folder that may be written but not read
    if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != EROFS)
      fail_errno();  // EINVAL: cannot sync folders
  }

  void discard() noexcept {
    file_.close();
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }

  [[noreturn]] void fail_errno() {
    int const reason = errno;
    fail(std::strerror(reason), detail::write_remedy(reason));
  }

  [[noreturn]] void fail(std::string const& reason, char const* remedy) {
    discard();
    raise(Errc::io, "cannot write '", path_, "': ", reason, "; ", remedy);
  }

  std::string path_;       ///< as the caller gave it
  std::string target_;     ///< with links followed
  std::string temporary_;  ///< empty: there is none
  detail::Descriptor file_;
  bool in_place_ = false;
};

/// Writes a whole file, or leaves an existing one unchanged.
/// @throws Error io, naming path, reason and remedy
inline void write_file(std::string const& path, std::string_view contents) {
  WholeFile file(path);
  file.write(contents);
  file.commit();
}

}  // namespace stagger
