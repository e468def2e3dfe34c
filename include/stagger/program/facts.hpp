// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Digests of programs, which processes compare before they run them together.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/error.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// A digest of several things, in order.
class Digest {
 public:
  Digest& add(std::string_view text) noexcept {
    value_ ^= collective::digest(text) + 0x9e3779b97f4a7c15U + (value_ << 6U) + (value_ >> 2U);
    return *this;
  }
  template <class... T> Digest& numbers(T... number) noexcept {
    std::int64_t const all[] = {static_cast<std::int64_t>(number)...};
    return add({reinterpret_cast<char const*>(all), sizeof all});
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] std::string hex() const {
    constexpr char digits[] = "0123456789abcdef";
    std::string hex(16, '0');
    for (std::size_t i = 0; i < 16; ++i) hex[i] = digits[value_ >> (60 - 4 * i) & 15U];
    return hex;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

/// The digest of one rank's instructions and waits.
[[nodiscard]] [[gnu::cold]] inline Digest digest_of(RankProgram const& rank) noexcept {
  Digest code;
  for (Instruction const& in : rank.code)
    code.numbers(in.op, in.signal_count, in.waits, in.stage, in.cell, in.microbatch, in.x, in.y,
                 in.kept, in.dy, in.dx, in.inner, in.version, in.next_version, in.group,
                 in.signal_count > 0 ? in.signal[0] : 0, in.signal_count > 1 ? in.signal[1] : 0,
                 in.signal_count > 2 ? in.signal[2] : 0);
  for (Wait const& wait : rank.waits) code.numbers(wait.signal, wait.count);
  return code;
}

/// The gradient groups as text, "stage:lowest-highest".
[[nodiscard]] [[gnu::cold]] inline std::string describe_groups(Program const& program) {
  std::string groups;
  for (GradientGroup const& group : program.groups) {
    groups += text(groups.empty() ? "" : " ", group.stage, ":", group.lowest, "-");
    if (group.highest != GradientGroup::all) groups += text(group.highest);
  }
  return groups.empty() ? "none" : groups;
}

}  // namespace stagger::detail
