// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/columns.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "catch.hpp"

namespace columns_test {

namespace sg = stagger;
using sg::Block;
using sg::detail::BlockSource;

namespace {

/// A value with columns of its own: a row after the other, beside a count of what is taken.
struct Matrix {
  sg::Tensor<float> values;
  [[nodiscard]] std::size_t rows() const { return values.rows(); }
  [[nodiscard]] std::size_t columns() const { return values.extent(1); }
  void resize_rows(Matrix const& like, std::size_t n) { values.resize_rows(like.values, n); }
  void copy_rows(std::size_t at, Matrix const& from, std::size_t first, std::size_t n) {
    values.copy_rows(at, from.values, first, n);
  }
  void resize_block(Matrix const&, Block block) { values.resize({block.rows, block.columns}); }
  void copy_block(Block at, Matrix const& from, Block first, Block size) {
    each(at, from, first, size, [](float& to, float x) { to = x; });
  }
  void add_block(Block at, Matrix const& from, Block first, Block size) {
    each(at, from, first, size, [](float& to, float x) { to += x; });
  }
  template <class Do> void each(Block at, Matrix const& from, Block first, Block size, Do act) {
    for (std::size_t r = 0; r < size.rows; ++r)
      for (std::size_t c = 0; c < size.columns; ++c)
        act(values[(at.rows + r) * columns() + at.columns + c],
            from.values[(first.rows + r) * from.columns() + first.columns + c]);
  }
};

void require_same_bits(sg::Tensor<float> const& a, sg::Tensor<float> const& b) {
  REQUIRE(a.extents() == b.extents());
  REQUIRE(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("core/Columns: blocks are taken element by element, in the order of their sources",
          "[core]") {
  std::mt19937 random(7);
  auto const below = [&](std::size_t n) { return random() % n; };
  auto const fill = [&](sg::Tensor<float>& t) {
    for (float& v : t) v = std::uniform_real_distribution<float>(-1, 1)(random);
  };
  for (int round = 0; round < 300; ++round) {
    // Rows from a few elements to more than a block of a sum.
    std::size_t const width = round % 5 == 0 ? 1500 : 1 + below(40);
    std::size_t const rows = 1 + below(40);
    std::size_t const at = below(3);
    Matrix to;
    to.values.resize({rows + at + below(3), width});
    fill(to.values);
    sg::Tensor<float> expected = to.values;
    sg::Tensor<float> tensor = to.values;
    std::size_t const count = 1 + below(BlockSource::most);
    bool const whole = round % 3 == 0;
    std::vector<Matrix> from(count);
    std::vector<BlockSource> sources(count);
    std::size_t const column = whole ? 0 : below(width);
    std::size_t const columns = whole ? width : 1 + below(width - column);
    for (std::size_t s = 0; s < count; ++s) {
      Block const first{below(3), whole ? 0 : below(3)};
      from[s].values.resize({first.rows + rows, first.columns + columns + (whole ? 0 : below(3))});
      fill(from[s].values);
      sources[s] = {&from[s], first, column, columns, s != 0 ? below(4) != 0 : below(2) != 0};
      if (!whole && below(4) == 0) {  // another part of the columns
        sources[s].columns = 1 + below(columns);
        sources[s].column = column + columns - sources[s].columns;
      }
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < sources[s].columns; ++c) {
          float& e = expected[(at + r) * width + sources[s].column + c];
          float const x = from[s].values[(first.rows + r) * from[s].columns() + first.columns + c];
          e = sources[s].adds ? e + x : x;
        }
    }
    sg::detail::Columns<Matrix>::take(to, at, rows, sources.data(), count);
    require_same_bits(to.values, expected);
    for (std::size_t s = 0; s < count; ++s) sources[s].from = &from[s].values;
    sg::detail::Columns<sg::Tensor<float>>::take(tensor, at, rows, sources.data(), count);
    require_same_bits(tensor, expected);
  }
}

TEST_CASE("core/Columns: the columns of a large tensor come from two others", "[core]") {
  std::size_t const rows = 1031, half = 512;  // more than 4 MiB
  sg::Tensor<float> left({rows, half}), right({rows, half}), whole({rows, 2 * half});
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<float>(i);
    right[i] = -static_cast<float>(i) - 1;
  }
  BlockSource const sources[] = {{&left, {}, 0, half, false}, {&right, {}, half, half, false}};
  sg::detail::Columns<sg::Tensor<float>>::take(whole, 0, rows, sources, 2);
  std::size_t wrong = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < half; ++c) {
      wrong += whole[r * 2 * half + c] != left[r * half + c];
      wrong += whole[r * 2 * half + half + c] != right[r * half + c];
    }
  CHECK(wrong == 0);
}

}  // namespace columns_test
