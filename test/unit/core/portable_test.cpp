// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/portable.hpp>

#include <cstddef>
#include <memory>
#include <optional>
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

struct Perhaps {
  float scale = 0;
  std::optional<stagger::Tensor<float>> values;
  std::optional<std::vector<Pair>> pairs;
  auto fields() { return std::tie(scale, values, pairs); }
  auto fields() const { return std::tie(scale, values, pairs); }
};
static_assert(stagger::detail::require_fields<Portable, Perhaps>());
static_assert(!Portable<std::optional<std::unique_ptr<int>>>::exists);

// A fields() without its twin can be written but not read, or the other way round.
struct OnlyConst {
  stagger::Tensor<float> values;
  auto fields() const { return std::tie(values); }
};
static_assert(!Portable<OnlyConst>::exists);

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

TEST_CASE("core/Portable: a std::optional is sent with its value, or without one", "[core]") {
  Perhaps back;  // takes each in turn, as a slot does
  for (int const round : {0, 1, 2, 3, 2, 1}) {
    Perhaps sent{.scale = static_cast<float>(round), .values = {}, .pairs = {}};
    if (round % 2 == 1) {
      sent.values.emplace(std::initializer_list<std::size_t>{2, 3});
      sent.values->fill(0.5F);
    }
    if (round >= 2) {
      sent.pairs.emplace(2);
      sent.pairs->back().mask = {round};
    }
    ByteWriter out;
    Portable<Perhaps>::write(out, sent);
    ByteReader in(out.data(), out.size());
    Portable<Perhaps>::read(in, back);
    REQUIRE(in.left() == 0);
    REQUIRE(back.scale == sent.scale);
    REQUIRE(back.values.has_value() == sent.values.has_value());
    if (sent.values) {
      REQUIRE(back.values->extents() == sent.values->extents());
      REQUIRE((*back.values)[5] == 0.5F);
    }
    REQUIRE(back.pairs.has_value() == sent.pairs.has_value());
    if (sent.pairs) REQUIRE(back.pairs->back().mask == std::vector{round});
  }
}

}  // namespace portable_test
