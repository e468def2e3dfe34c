// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/tensor.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace tensor_test {

using stagger::Tensor;

namespace {

bool aligned(void const* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % stagger::alignment_bytes == 0;
}

Tensor<float> counted(std::size_t rows, std::size_t columns) {
  Tensor<float> t({rows, columns});
  std::iota(t.begin(), t.end(), 1.0F);
  return t;
}

}  // namespace

TEST_CASE("core/Tensor: sizes, extents and alignment follow resize", "[core]") {
  Tensor<float> t;
  CHECK(t.empty());
  CHECK(t.bytes() == 0);
  t.resize({2, 3, 4, 5});
  CHECK(t.size() == 120);
  CHECK(t.extent(0) == 2);
  CHECK(t.extent(3) == 5);
  CHECK(aligned(t.data()));
  t.resize({7});
  CHECK(t.size() == 7);
  CHECK(t.extent(1) == 0);
  t.resize({3, 0});
  CHECK(t.empty());
  for (std::size_t n = 1; n < 200; ++n) {
    Tensor<double> const each({n});
    CHECK(aligned(each.data()));
    CHECK(each.bytes() >= n * sizeof(double));
    CHECK(each.bytes() < n * sizeof(double) + 64);
  }
}

TEST_CASE("core/Tensor: a fifth extent is refused and changes nothing, asked for it is 0",
          "[core]") {
  Tensor<float> t{2, 3};
  CHECK_THROWS_WITH(t.resize({2, 3, 4, 5, 6}),
                    Catch::Contains("a Tensor of 5 extents") && Catch::Contains("at most 4"));
  CHECK(t.extents() == std::array<std::size_t, 4>{2, 3});
  CHECK(t.size() == 6);
  CHECK_THROWS_AS((Tensor<double>{1, 1, 1, 1, 1, 1}), stagger::Error);
  Tensor<float> const full{2, 3, 4, 5};
  for (std::size_t past : {std::size_t{4}, std::size_t{5}, ~std::size_t{0}}) {
    CHECK(full.extent(past) == 0);
    CHECK(t.extent(past) == 0);
  }
}

TEST_CASE("core/Tensor: of makes one extent with the elements given", "[core]") {
  auto const t = Tensor<double>::of({3, -1.5, 4});
  CHECK(t.extents() == std::array<std::size_t, 4>{3});
  CHECK(std::vector<double>(t.begin(), t.end()) == std::vector<double>{3, -1.5, 4});
  CHECK(Tensor<float>::of({}).empty());
}

TEST_CASE("core/Tensor: memory stays where it is until more is needed than ever before", "[core]") {
  std::mt19937 random(1);
  Tensor<float> t;
  std::size_t most = 0;
  for (int i = 0; i < 1000; ++i) {
    std::size_t const n = random() % 500;
    auto const* const before = t.data();
    auto const bytes = t.bytes();
    t.resize({n});
    if (n <= most) {
      REQUIRE(t.data() == before);
      REQUIRE(t.bytes() == bytes);
    }
    most = std::max(most, n);
    REQUIRE(t.bytes() >= most * sizeof(float));
    t.fill(1);  // all of it is ours
  }
}

TEST_CASE("core/Tensor: copies are equal and apart, moves leave nothing behind", "[core]") {
  Tensor<float> a = counted(3, 4);
  Tensor<float> b = a;
  CHECK(std::vector<float>(b.begin(), b.end()) == std::vector<float>(a.begin(), a.end()));
  CHECK(b.extents() == a.extents());
  b[0] = -1;
  CHECK(a[0] == 1);

  auto const* const memory = a.data();
  Tensor<float> c = std::move(a);
  CHECK(c.data() == memory);
  CHECK(c.size() == 12);
  CHECK(a.empty());  // NOLINT(bugprone-use-after-move)
  CHECK(a.data() == nullptr);
  CHECK(a.bytes() == 0);
  a = counted(2, 2);  // and can be used again
  CHECK(a[3] == 4);

  Tensor<float> big = counted(10, 10);
  auto const* const kept = big.data();
  big = a;  // fits: no new memory
  CHECK(big.data() == kept);
  CHECK(big.size() == 4);
  CHECK(big[3] == 4);
  a = std::move(big);
  CHECK(a.data() == kept);

  auto& self = a;
  a = self;
  CHECK(a[3] == 4);
  a = std::move(self);
  CHECK(a[3] == 4);
  CHECK(a.size() == 4);

  Tensor<std::int32_t> other;
  other.resize_like(a);
  CHECK(other.extents() == a.extents());
  Tensor<float> const empty;
  Tensor<float> copy_of_empty = empty;
  a = empty;
  CHECK(a.empty());
  CHECK(copy_of_empty.empty());
}

TEST_CASE("core/Tensor: a size that no memory has is an exception and changes nothing", "[core]") {
  std::size_t const huge = std::numeric_limits<std::size_t>::max();
  Tensor<float> t = counted(2, 3);
  CHECK_THROWS_AS(t.resize({huge}), std::bad_alloc);
  CHECK_THROWS_AS(t.resize({huge / 4, 4}), std::bad_alloc);
  CHECK_THROWS_AS(t.resize({std::size_t{1} << 32U, std::size_t{1} << 32U}),
                  std::bad_alloc);  // 0 modulo 2^64
  CHECK(t.size() == 6);
  CHECK(t[5] == 6);
}

}  // namespace tensor_test
