// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/portable.hpp>

#include <cstddef>
#include <tuple>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/tensor.hpp>

#include "catch.hpp"

namespace portable_test {

namespace {

using stagger::ByteReader;
using stagger::ByteWriter;
using stagger::Portable;

struct Pair {
  stagger::Tensor<float> values;
  std::vector<int> mask;
  auto fields() { return std::tie(values, mask); }
  auto fields() const { return std::tie(values, mask); }
};
static_assert(Portable<Pair>::exists && Portable<std::vector<Pair>>::exists);

}  // namespace

TEST_CASE("core/Portable: what is written is read back, and less of it is an error", "[core]") {
  Pair pair;
  pair.values.resize({2, 3});
  pair.values.fill(1.5F);
  pair.mask = {4, 5};
  ByteWriter out;
  Portable<Pair>::write(out, pair);
  Pair back;
  ByteReader in(out.data(), out.size());
  Portable<Pair>::read(in, back);
  REQUIRE(in.left() == 0);
  REQUIRE(back.values.extents() == pair.values.extents());
  REQUIRE(std::vector(back.values.begin(), back.values.end()) == std::vector(6, 1.5F));
  REQUIRE(back.mask == pair.mask);
  ByteReader cut(out.data(), out.size() - 1);
  REQUIRE_THROWS_AS(Portable<Pair>::read(cut, back), stagger::Error);
}

}  // namespace portable_test
