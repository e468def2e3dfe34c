// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The disk of a server whose process may end between any two of the files that it writes.

#include <cstddef>
#include <cstdlib>
#include <set>
#include <string_view>

namespace lab {

/// Every file gets its name by a rename, which the program hands over to `renames`.
class Disk {
 public:
  /// The process ends in one of the next writes. What it does afterwards reaches no file.
  /// @param writes  before that one
  /// @param behind  whether the last of them ends it, not the one that follows
  void arm(int writes, bool behind) {
    armed_ = true;
    left_ = writes;
    behind_ = behind && writes > 0;
  }
  void disarm() { *this = {}; }
  [[nodiscard]] bool armed() const noexcept { return armed_; }
  /// Whether the process has ended.
  [[nodiscard]] bool dead() const noexcept { return dead_; }
  /// Another event of the simulation begins.
  void begin_event() {
    lost_.clear();
    wrote_record_ = false;
  }
  /// In this event: whether the newest state of a layer has not reached its file.
  [[nodiscard]] bool lost(std::size_t layer) const { return lost_.count(layer) != 0; }
  /// In this event: whether the failures of streams were written, which count for all layers.
  [[nodiscard]] bool wrote_record() const noexcept { return wrote_record_; }

  /// @return whether the file `to` is written
  bool renames(std::string_view to) {
    if (!armed_) return true;
    dead_ = dead_ || left_ == 0;
    if (dead_) {
      if (is_layer(to)) lost_.insert(layer_of(to));
      return false;
    }
    dead_ = --left_ == 0 && behind_;
    is_layer(to) ? void(lost_.erase(layer_of(to))) : void(wrote_record_ = true);
    return true;
  }

 private:
  static constexpr std::string_view layer_file = "/layer-";
  [[nodiscard]] static bool is_layer(std::string_view path) {
    return path.find(layer_file) != path.npos;
  }
  [[nodiscard]] static std::size_t layer_of(std::string_view path) {
    return std::strtoul(path.data() + path.find(layer_file) + layer_file.size(), nullptr, 10);
  }

  bool armed_ = false;
  bool behind_ = false;
  bool dead_ = false;
  bool wrote_record_ = false;
  int left_ = 0;
  std::set<std::size_t> lost_{};
};

/// Of this program.
inline Disk& disk() {
  static Disk one;
  return one;
}

}  // namespace lab
