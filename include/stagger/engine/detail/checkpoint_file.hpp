// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Bytes of a checkpoint on disk: whole files, their checksum, their folder.

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stagger/core/error.hpp>
#include <stagger/core/tensor.hpp>

namespace stagger::detail {

static_assert(std::endian::native == std::endian::little,
              "stagger: checkpoints are written as they lie in memory, which "
              "must be little-endian");

[[nodiscard]] constexpr std::uint64_t padded(std::uint64_t bytes) noexcept {
  return (bytes + 7) / 8 * 8;
}

[[noreturn]] inline void throw_io(std::string const& what, std::string const& path, int error) {
  raise(Errc::io, "cannot " + what + " " + path + ": " + std::strerror(error) + "; free space, change its permissions, or name another folder");
}

/// An open file or folder.
class Descriptor {
 public:
  Descriptor(char const* path, int flags) : number_(::open(path, flags | O_CLOEXEC, 0644)) {}
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() { close(); }
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
  /// 0, or what `close` reports: a full disk may be noticed as late as here.
  int close() noexcept {
    int const result = number_ >= 0 ? ::close(number_) : 0;
    number_ = -1;
    return result;
  }

 private:
  int number_;
};

/// The checksum of the format: each word goes through a one-to-one function, so no change within 8
/// bytes is missed.
class Checksum {
 public:
  /// @pre bytes.size() is a multiple of 8
  void add(std::span<std::byte const> bytes) noexcept {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      value_ = (value_ ^ word) * 0xff51afd7ed558ccdU;
      value_ ^= value_ >> 32U;
    }
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0x9e3779b97f4a7c15U;
};

/// Writes to `path`.tmp; `commit` makes it `path`, anything else removes it.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string path)
      : path_(std::move(path)),
        temporary_(path_ + ".tmp"),
        file_(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC) {
    if (!file_.is_open()) throw_io("write", temporary_, errno);
    buffer_.reserve(buffer_bytes);
  }
  CheckpointWriter(CheckpointWriter const&) = delete;
  CheckpointWriter& operator=(CheckpointWriter const&) = delete;
  ~CheckpointWriter() {
    if (!committed_) ::unlink(temporary_.c_str());
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

  /// Adds the checksum, syncs, renames.
  void commit() {
    flush();
    std::uint64_t const sum = checksum_.value();
    put(&sum, 8);
    flush();
    if (::fsync(file_.number()) != 0 || file_.close() != 0) throw_io("write", temporary_, errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw_io("rename to", path_, errno);
    committed_ = true;
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

  void flush() {  // only where a multiple of 8 bytes has been put
    checksum_.add(buffer_);
    for (std::size_t done = 0; done < buffer_.size();) {
      ::ssize_t const n = ::write(file_.number(), buffer_.data() + done, buffer_.size() - done);
      if (n < 0 && errno != EINTR) throw_io("write", temporary_, errno);
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    buffer_.clear();
  }

  std::string path_;
  std::string temporary_;
  Descriptor file_;
  std::vector<std::byte> buffer_;
  Checksum checksum_;
  bool committed_ = false;
};

/// Reads fields in order; refuses with a sentence instead of reading past the end.
class CheckpointReader {
 public:
  CheckpointReader(std::span<std::byte const> bytes, std::string const& path)
      : bytes_(bytes), path_(path) {}

  [[noreturn]] void refuse(std::string const& fault) const {
    raise(Errc::bad_data, "the checkpoint " + path_ + " is damaged: it " + fault);
  }

  std::uint32_t u32() { return number<std::uint32_t>(); }
  std::uint64_t u64() { return number<std::uint64_t>(); }
  std::string_view text(std::uint64_t size) {
    auto const bytes = block(size);
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
  }
  std::span<std::byte const> block(std::uint64_t size) {
    if (size > bytes_.size() || padded(size) > bytes_.size() - at_) refuse_short();
    auto const part = bytes_.subspan(at_, size);
    at_ += padded(size);
    return part;
  }

  /// Takes the checksum off the end and compares.
  void check_sum() {
    if (bytes_.size() < at_ + 8 || bytes_.size() % 8 != 0) refuse_short();
    auto const end = bytes_.size() - 8;
    Checksum checksum;
    checksum.add(bytes_.first(end));
    std::uint64_t stored;
    std::memcpy(&stored, bytes_.data() + end, 8);
    if (stored != checksum.value()) refuse("does not agree with its checksum");
    bytes_ = bytes_.first(end);
  }
  void finish() const {
    if (at_ != bytes_.size()) refuse("has bytes that belong to no parameter");
  }

 private:
  [[noreturn]] void refuse_short() const {
    refuse("ends after " + std::to_string(bytes_.size()) + " bytes");
  }

  template <class N> N number() {
    if (sizeof(N) > bytes_.size() - at_) refuse_short();
    N value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(N));
    at_ += sizeof(N);
    return value;
  }

  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;  // <= bytes_.size()
  std::string path_;
};

[[nodiscard]] inline Tensor<std::byte> read_whole_file(std::string const& path) {
  Descriptor file(path.c_str(), O_RDONLY);
  struct ::stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) throw_io("read", path, errno);
  Tensor<std::byte> bytes({static_cast<std::size_t>(status.st_size)});
  for (std::size_t done = 0; done < bytes.size();) {
    ::ssize_t const n = ::read(file.number(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno != EINTR) throw_io("read", path, errno);
    if (n == 0)
      raise(Errc::bad_data, "the checkpoint " + path + " is damaged: it became shorter while it was read");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return bytes;
}

inline constexpr std::string_view checkpoint_prefix = "step-";
inline constexpr std::string_view checkpoint_suffix = ".stagger";

[[nodiscard]] inline std::string checkpoint_path(std::string const& folder, std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 9) digits.insert(0, 9 - digits.size(), '0');
  return folder + "/" + std::string(checkpoint_prefix) + digits + std::string(checkpoint_suffix);
}

/// Calls `visit(name, step)` for each file of the folder that looks like a checkpoint.
template <class Visit>
void visit_checkpoints(std::string const& folder, std::string_view suffix, Visit visit) {
  ::DIR* const handle = ::opendir(folder.c_str());
  if (handle == nullptr) throw_io("read", folder, errno);
  std::vector<std::string> names;
  while (::dirent const* const entry = ::readdir(handle)) names.emplace_back(entry->d_name);
  ::closedir(handle);
  for (std::string const& name : names) {
    if (!name.starts_with(checkpoint_prefix) || !name.ends_with(suffix)) continue;
    if (name.size() <= checkpoint_prefix.size() + suffix.size()) continue;
    char const* const end = name.data() + name.size() - suffix.size();
    std::int64_t step = 0;
    auto const [stop, error] = std::from_chars(name.data() + checkpoint_prefix.size(), end, step);
    if (error == std::errc{} && stop == end && step >= 0) visit(name, step);
  }
}

/// Newest first.
[[nodiscard]] inline std::vector<std::int64_t> checkpoint_steps(std::string const& folder) {
  std::vector<std::int64_t> steps;
  visit_checkpoints(folder, checkpoint_suffix,
                    [&](std::string const&, std::int64_t step) { steps.push_back(step); });
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

/// Keeps the checkpoint of `step` and the one before it. A file that cannot be removed stays: that
/// harms nobody.
inline void remove_other_checkpoints(std::string const& folder, std::int64_t step) {
  std::int64_t before = -1;
  for (std::int64_t const other : checkpoint_steps(folder))
    if (other < step) before = std::max(before, other);
  visit_checkpoints(folder, checkpoint_suffix, [&](std::string const& name, std::int64_t other) {
    if (other != step && other != before) ::unlink((folder + "/" + name).c_str());
  });
  // What a process left that was killed while it wrote.
  visit_checkpoints(
      folder, std::string(checkpoint_suffix) + ".tmp",
      [&](std::string const& name, std::int64_t) { ::unlink((folder + "/" + name).c_str()); });
}

/// Makes renames in the folder survive a loss of power.
inline void sync_folder(std::string const& folder) {
  Descriptor handle(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (!handle.is_open()) throw_io("open", folder, errno);
  if (::fsync(handle.number()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw_io("sync", folder, errno);
}

/// Creates the folder and those above it, and proves that a file can be written there.
inline void make_writable_folder(std::string const& folder) {
  if (folder.empty()) raise(Errc::io, "the folder for checkpoints has no name; name one");
  for (std::size_t at = 1; at <= folder.size(); ++at)
    if (at == folder.size() || folder[at] == '/')
      if (::mkdir(folder.substr(0, at).c_str(), 0755) != 0 && errno != EEXIST)
        throw_io("create the folder", folder.substr(0, at), errno);
  std::string const probe = folder + "/.stagger-probe-" + std::to_string(::getpid());
  Descriptor file(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  if (!file.is_open()) throw_io("write into the folder", folder, errno);
  ::unlink(probe.c_str());
}

}  // namespace stagger::detail
