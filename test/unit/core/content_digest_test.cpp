// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/content_digest.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace content_digest_test {

namespace sg = stagger;

namespace {

template <class T> std::uint64_t digest(std::vector<T> const& values) {
  return sg::detail::content_digest(&sg::detail::add_content_of<T>,
                                    reinterpret_cast<std::byte const*>(values.data()), sizeof(T),
                                    values.size());
}
template <class T> bool alike(T const& a, T const& b) {
  return digest(std::vector<T>{a}) == digest(std::vector<T>{b});
}

struct Sample {
  sg::Tensor<> pixels;
  std::vector<std::uint8_t> mask;
  int label = 0;
  auto fields() { return std::tie(pixels, mask, label); }
  auto fields() const { return std::tie(pixels, mask, label); }
};

struct Point {  // of numbers of one type
  float x, y;
};

struct View {  // its bytes differ from process to process
  float const* first;
  std::size_t count;
};

struct OnDevice : sg::detail::TensorShape {  // like a cuda::Tensor
  OnDevice(std::initializer_list<std::size_t> extents, float const* at)
      : TensorShape(extents), memory(at) {}
  float const* memory;
  [[nodiscard]] float const* data() const { return memory; }
};

}  // namespace

TEST_CASE("core/ContentDigest: every bit, the length and the order count", "[core]") {
  for (std::size_t const size : {1U, 7U, 8U, 31U, 32U, 33U, 100U}) {
    std::vector<std::uint8_t> const zeros(size, 0);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      auto other = zeros;
      other[bit / 8] = static_cast<std::uint8_t>(1U << (bit % 8));
      REQUIRE(!alike(zeros, other));
    }
    REQUIRE(!alike(zeros, std::vector<std::uint8_t>(size + 1, 0)));
    sg::detail::ContentDigest here, longer;  // of bytes, without the number of elements
    here.add(zeros.data(), size);
    longer.add(std::vector<std::uint8_t>(size + 1, 0).data(), size + 1);
    REQUIRE(here.value() != longer.value());
  }
  std::vector<std::uint64_t> rising;
  for (std::uint64_t i = 0; i < 40; ++i) rising.push_back(i * i);
  for (std::size_t i = 0; i < rising.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      auto swapped = rising;
      std::swap(swapped[i], swapped[j]);
      REQUIRE(!alike(rising, swapped));
    }
  using Two = std::vector<std::vector<int>>;
  CHECK(digest(Two{{1, 2}, {3}}) != digest(Two{{1}, {2, 3}}));
  CHECK(digest(Two{{1}, {2}}) != digest(Two{{2}, {1}}));
  CHECK(digest(Two{}) != 0);
}

TEST_CASE("core/ContentDigest: what types contain, however it lies in memory", "[core]") {
  auto const matrix = [](std::size_t rows, std::size_t columns) {
    sg::Tensor<> tensor({rows, columns});
    tensor.fill(1);
    return tensor;
  };
  CHECK(alike(matrix(2, 3), matrix(2, 3)));
  CHECK(!alike(matrix(2, 3), matrix(3, 2)));
  Sample const sample{matrix(2, 2), {1, 0}, 4};
  Sample other = sample;
  other.mask.reserve(100);
  CHECK(alike(sample, other));
  other.mask[1] = 1;
  CHECK(!alike(sample, other));
  other = sample;
  other.label = 5;
  CHECK(!alike(sample, other));
  CHECK(!alike(1.0, 2.0));
  using Perhaps = std::optional<std::vector<float>>;
  CHECK(!alike(Perhaps{{1, 2}}, Perhaps{{1, 3}}));
  CHECK(!alike(Perhaps{}, Perhaps{std::vector<float>{}}));
  CHECK(alike(Perhaps{{1, 2}}, Perhaps{{1, 2}}));
  static_assert(sg::detail::has_content<Perhaps> && sg::detail::has_content<Sample>);
  static_assert(!sg::detail::has_content<View> && !sg::detail::has_content<std::vector<View>>);
  CHECK(!alike(Point{1, 2}, Point{2, 1}));
  CHECK(!alike(std::array<int, 2>{1, 2}, std::array<int, 2>{2, 1}));
  CHECK(!alike(std::string("cat"), std::string("car")));
  CHECK(!alike(std::vector<Sample>{sample}, std::vector<Sample>{other}));
}

TEST_CASE("core/ContentDigest: addresses and memory of devices are not looked at", "[core]") {
  float const a[] = {1, 2};
  float const b[] = {3, 4};
  CHECK(alike(View{a, 2}, View{b, 2}));
  CHECK(alike(OnDevice({2, 1}, a), OnDevice({2, 1}, b)));
  CHECK(alike(OnDevice({2}, nullptr), OnDevice({2}, b)));
  CHECK(!alike(OnDevice({2, 1}, a), OnDevice({1, 2}, a)));
}

}  // namespace content_digest_test
