// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Whether anything has moved for as long as it may stand still.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <stagger/core/requirements.hpp>

namespace stagger::detail {

/// Tells from looks at a counter whether it has stood still for a whole deadline. Counts looks
/// instead of reading a clock: to a process that was stopped for hours, that is one look.
class StallDetector {
 public:
  /// @param deadline_s  > 0
  explicit StallDetector(double deadline_s) noexcept
      : interval_s_(std::min(deadline_s / 8, 3600.0)), looks_(deadline_s / interval_s_) {}

  /// How long to wait between two looks.
  [[nodiscard]] std::chrono::duration<double> interval() const noexcept {
    return std::chrono::duration<double>(interval_s_);
  }
  /// Looks at something that runs. Expired, it begins anew.
  /// @return  whether it has not moved for the deadline
  [[nodiscard]] bool expired(std::uint64_t progress) noexcept {
    quiet_ = seen_ && progress == progress_ ? quiet_ + 1 : 0;
    seen_ = true;
    progress_ = progress;
    if (static_cast<double>(quiet_) < looks_) return false;
    seen_ = false;
    return true;
  }
  /// Nothing runs.
  void idle() noexcept { seen_ = false; }

 private:
  double interval_s_;
  double looks_;  // as many intervals as make the deadline
  std::uint64_t progress_ = 0;
  std::uint64_t quiet_ = 0;  // looks that found it where it had been
  bool seen_ = false;
};

}  // namespace stagger::detail
