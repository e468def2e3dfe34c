// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Files with a checksum that are complete on the disk or absent, and the folders that
///         contain them.

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stagger/core/checksum.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/file.hpp>

namespace stagger::detail {

static_assert(std::endian::native == std::endian::little,
              "stagger: files are written as they lie in memory, which must be little-endian");

[[nodiscard]] constexpr std::uint64_t padded(std::uint64_t bytes) noexcept {
  return (bytes + 7) / 8 * 8;
}

/// @param what  "create the folder", for a folder into which files are written
[[noreturn]] inline void throw_not_written(char const* what, std::string const& path, int error) {
  raise(Errc::io, "cannot ", what, " ", path, ": ", std::strerror(error), "; ",
        write_remedy(error));
}

/// For a file or a folder that cannot be read. @param kind  "file" or "folder"
[[noreturn]] inline void throw_not_read(char const* kind, std::string const& path, int error) {
  struct ::stat status{};
  bool const dangling = error == ENOENT && ::lstat(path.c_str(), &status) == 0;
  std::string remedy = text("name another ", kind);
  if (dangling)
    remedy = text("it is a link to nothing: create what it leads to, or ", remedy);
  else if (error == ENOENT || error == ENOTDIR || error == EISDIR)
    remedy = text("give the name of a ", kind, " that exists");
  else if (error == EACCES || error == EPERM)
    remedy = text("change its permissions, or ", remedy);
  raise(Errc::io, "cannot read ", path, ": ", std::strerror(error), "; ", remedy);
}

/// Fields of a file, one after the other, and their checksum at the end. The file appears under its
/// name when all of it is on the disk.
class CheckedWriter {
 public:
  explicit CheckedWriter(std::string path) : file_(std::move(path)) {
    buffer_.reserve(buffer_bytes);
  }

  void u64(std::uint64_t value) { put(&value, 8); }
  void u32(std::uint32_t first, std::uint32_t second) {
    put(&first, 4);
    put(&second, 4);
  }
  void text(std::string_view text) { block(std::as_bytes(std::span(text))); }
  void block(std::span<std::byte const> bytes) {
    put(bytes.data(), bytes.size());
    std::uint64_t const zeros = 0;
    put(&zeros, padded(bytes.size()) - bytes.size());
  }

  /// Adds the checksum and makes the file visible.
  void commit() {
    flush();
    std::uint64_t const sum = checksum_.value();
    put(&sum, 8);
    flush();
    file_.commit();
  }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{1} << 18U;  // a multiple of 8

  void put(void const* data, std::size_t size) {
    auto const* from = static_cast<std::byte const*>(data);
    while (size != 0) {
      std::size_t const part = std::min(size, buffer_bytes - buffer_.size());
      buffer_.insert(buffer_.end(), from, from + part);
      from += part;
      size -= part;
      if (buffer_.size() == buffer_bytes) flush();
    }
  }

  void flush() {  // only if a multiple of 8 bytes has been written
    checksum_.add(buffer_);
    file_.write({reinterpret_cast<char const*>(buffer_.data()), buffer_.size()});
    buffer_.clear();
  }

  WholeFile file_;
  std::vector<std::byte> buffer_;
  Checksum checksum_;
};

/// A file of a `CheckedWriter`, which is read in pieces: it may be larger than memory.
class CheckedReader {
 public:
  /// @param what  its name in error messages: "the checkpoint"
  /// @throws Error  io if it cannot be read
  CheckedReader(std::string path, std::string what)
      : path_(std::move(path)), what_(std::move(what)), file_(path_.c_str(), O_RDONLY) {
    struct ::stat status{};
    if (!file_ || ::fstat(file_.get(), &status) != 0) throw_not_read("file", path_, errno);
    if (S_ISDIR(status.st_mode)) throw_not_read("file", path_, EISDIR);
    size_ = end_ = static_cast<std::uint64_t>(status.st_size);
  }

  [[noreturn]] void refuse(std::string const& fault) const {
    raise(Errc::bad_data, what_, " ", path_, " is damaged: it ", fault);
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  // Fields, in order.
  std::uint32_t u32() { return number<std::uint32_t>(); }
  std::uint64_t u64() { return number<std::uint64_t>(); }
  std::string text(std::uint64_t size) {
    std::uint64_t const from = block(size);
    std::string value(size, ' ');
    read(from, std::as_writable_bytes(std::span(value)));
    return value;
  }
  /// Skips a block. @return its offset
  std::uint64_t block(std::uint64_t size) {
    if (size > end_ || padded(size) > end_ - at_) refuse_short();
    return std::exchange(at_, at_ + padded(size));
  }
  void finish() const {
    if (at_ != end_) refuse("has bytes that belong to nothing");
  }

  /// Compares the checksum at the end, which is not a field.
  void check_sum() {
    if (size_ < at_ + 8 || size_ % 8 != 0) refuse_short();
    end_ = size_ - 8;
    Checksum checksum;
    std::vector<std::byte> piece(std::min<std::uint64_t>(end_, std::uint64_t{1} << 18U));
    for (std::uint64_t from = 0; from < end_; from += piece.size()) {
      piece.resize(std::min<std::uint64_t>(piece.size(), end_ - from));
      read(from, piece);
      checksum.add(piece);
    }
    std::uint64_t stored = 0;
    read(end_, std::as_writable_bytes(std::span(&stored, 1)));
    if (stored != checksum.value()) refuse("does not agree with its checksum");
  }

  void read(std::uint64_t from, std::span<std::byte> to) const {
    while (!to.empty()) {
      ::ssize_t const n = ::pread(file_.get(), to.data(), to.size(), static_cast<::off_t>(from));
      if (n < 0 && errno != EINTR) throw_not_read("file", path_, errno);
      if (n == 0) refuse("became shorter while it was read");
      if (n < 0) continue;
      to = to.subspan(static_cast<std::size_t>(n));
      from += static_cast<std::uint64_t>(n);
    }
  }

 private:
  [[noreturn]] void refuse_short() const {
    refuse("ends after " + std::to_string(size_) + " bytes");
  }
  template <class N> N number() {
    if (sizeof(N) > end_ - at_) refuse_short();
    N value{};
    read(at_, std::as_writable_bytes(std::span(&value, 1)));
    at_ += sizeof(N);
    return value;
  }

  std::string path_;
  std::string what_;
  Descriptor file_;
  std::uint64_t size_ = 0;
  std::uint64_t end_ = 0;  // of the fields
  std::uint64_t at_ = 0;   // <= end_
};

[[nodiscard]] inline std::vector<std::string> names_in(std::string const& folder) {
  ::DIR* const handle = ::opendir(folder.c_str());
  if (handle == nullptr) throw_not_read("folder", folder, errno);
  std::vector<std::string> names;
  while (::dirent const* const entry = ::readdir(handle)) names.emplace_back(entry->d_name);
  ::closedir(handle);
  return names;
}

/// Creates the folder and its parents, and tests that a file can be written there.
/// @param what  the folder's contents, for error messages
inline void make_writable_folder(std::string const& folder, char const* what) {
  if (folder.empty()) raise(Errc::io, "the folder for ", what, " has no name; name one");
  for (std::size_t at = 1; at <= folder.size(); ++at)
    if (at == folder.size() || folder[at] == '/')
      if (::mkdir(folder.substr(0, at).c_str(), 0755) != 0 && errno != EEXIST)
        throw_not_written("create the folder", folder.substr(0, at), errno);
  // Other processes may write into the folder too, and on several hosts they may have the same
  // number; so only a file that did not exist before, not even as a link, belongs to this process.
  std::string const before = folder + "/.stagger-probe-" + std::to_string(::getpid()) + "-";
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::string const probe = before + std::to_string(attempt);
    Descriptor const file(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (file) {
      ::unlink(probe.c_str());
      return;
    }
    if (errno != EEXIST) break;
  }
  throw_not_written("write into the folder", folder, errno);
}

}  // namespace stagger::detail
