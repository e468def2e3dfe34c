// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The state of a layer as fields of a file. The same code writes and reads it: it takes a
///         StateWriter or a StateReader.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <stagger/core/checked_file.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

class StateWriter {
 public:
  explicit StateWriter(CheckedWriter& out) noexcept : out_(out) {}

  /// Integers, none of them negative.
  template <std::integral... N> void numbers(N const&... number) {
    (out_.u64(static_cast<std::uint64_t>(number)), ...);
  }
  void real(double number) { out_.u64(std::bit_cast<std::uint64_t>(number)); }
  void text(std::string const& words) {
    out_.u64(words.size());
    out_.text(words);
  }
  void block(ParameterBlock const& block) { out_.block(block.span()); }
  void blocks(List<ParameterBlock> const& blocks, std::size_t /*bytes*/) {
    numbers(blocks.size());
    for (ParameterBlock const& each : blocks) block(each);
  }
  void require(bool /*possible*/) const noexcept {}
  void require_room(std::size_t /*count*/, std::size_t /*bytes*/) const noexcept {}

 private:
  CheckedWriter& out_;
};

class StateReader {
 public:
  explicit StateReader(CheckedReader& in) noexcept : in_(in) {}

  template <std::integral... N> void numbers(N&... number) { (read(number), ...); }
  void real(double& number) { number = std::bit_cast<double>(in_.u64()); }
  void text(std::string& words) {
    std::uint64_t const size = in_.u64();
    words = in_.text(size);
  }
  /// A block whose size is known.
  void block(ParameterBlock const& block) { in_.read(in_.block(block.size()), block.span()); }
  /// @param bytes  size of each block
  void blocks(List<ParameterBlock>& blocks, std::size_t bytes) {
    std::size_t count = 0;
    read(count);
    require_room(count, bytes);
    blocks.clear();
    while (blocks.size() < count) {
      ParameterBlock next;
      next.make(nullptr, bytes);
      block(next);
      blocks.push_back(std::move(next));
    }
  }
  /// @throws Error  bad_data if `possible` is false: numbers of the file contradict each other
  void require(bool possible) const {
    if (!possible) in_.refuse("has numbers that contradict each other");
  }
  /// Checks that the file is long enough before memory is allocated.
  void require_room(std::size_t count, std::size_t bytes) const {
    require(count < most && (bytes == 0 || count <= in_.size() / bytes));
  }

 private:
  static constexpr std::size_t most = 1U << 20U;  // blocks
  template <class N> void read(N& number) {
    std::uint64_t const value = in_.u64();
    number = static_cast<N>(value);
    require(std::in_range<N>(value));
  }
  void read(bool& flag) {
    std::uint64_t const value = in_.u64();
    flag = value == 1;
    require(value <= 1);
  }

  CheckedReader& in_;
};

}  // namespace stagger::detail
