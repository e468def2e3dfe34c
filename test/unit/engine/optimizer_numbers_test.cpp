// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/setup.hpp>

#include <string>
#include <tuple>

#include <stagger/model/optimizer.hpp>

#include "catch.hpp"

namespace {

using namespace stagger;
using detail::optimizer_digest;

struct Floats {
  float rate = 0.5F;
  float beta = 0.25F;
};
/// Bytes between its members may be anything.
struct Gaps {
  char kind = 1;
  double rate = 0.5;
};
struct Named {
  char kind = 1;
  double rate = 0.5;
  int warm_up = 10;
  std::string note{};  // no number, and not named
  auto fields() const { return std::tie(kind, rate, warm_up); }
};
struct Nothing {};
struct Derived : optimizer::AdamW {};

}  // namespace

TEST_CASE("engine/optimizer_numbers: each number changes the digest, and equal ones do not",
          "[engine]") {
  optimizer::AdamW const plain;
  CHECK(optimizer_digest(plain) == optimizer_digest(optimizer::AdamW{}));
  for (double optimizer::AdamW::* number :
       {&optimizer::AdamW::rate, &optimizer::AdamW::beta1, &optimizer::AdamW::beta2,
        &optimizer::AdamW::epsilon, &optimizer::AdamW::weight_decay}) {
    optimizer::AdamW other;
    other.*number *= 1 + 0x1p-50;
    CHECK(optimizer_digest(other) != optimizer_digest(plain));
  }
  CHECK(optimizer_digest(optimizer::Sgd{}) != optimizer_digest(optimizer::Sgd{.momentum = 0.9}));
  CHECK(optimizer_digest(Floats{}) != optimizer_digest(Floats{.beta = 0.5F}));
  CHECK(optimizer_digest(Floats{}) == optimizer_digest(Floats{}));
}

TEST_CASE("engine/optimizer_numbers: words have the type, and numbers that differ read differently",
          "[engine]") {
  using detail::optimizer_words;
  CHECK(optimizer_words(optimizer::Sgd{.rate = 0.1, .momentum = 0.9}) ==
        "stagger::optimizer::Sgd(0.1, 0.9, 0)");
  CHECK(optimizer_words(optimizer::Sgd{.rate = 0.1 * (1 + 0x1p-50)}) ==
        "stagger::optimizer::Sgd(0.10000000000000009, 0, 0)");
  CHECK_THAT(optimizer_words(Floats{}), Catch::EndsWith("Floats(0.5, 0.25)"));
  CHECK_THAT(optimizer_words(Named{.rate = 0.25}), Catch::EndsWith("Named(1, 0.25, 10)"));
  CHECK_THAT(optimizer_words(Nothing{}), Catch::EndsWith("Nothing()"));
  CHECK_THAT(optimizer_words(Gaps{}), Catch::EndsWith("Gaps()"));
  CHECK_THAT(optimizer_words(Derived{{.rate = 0.5}}),
             Catch::EndsWith("Derived(0.5, 0.9, 0.999, 1e-08, 0.01)"));
}

TEST_CASE("engine/optimizer_numbers: bytes that are no numbers are not looked at", "[engine]") {
  CHECK(optimizer_digest(Gaps{}) == 0);
  CHECK(optimizer_digest(Nothing{}) != 0);
  CHECK(optimizer_digest(Derived{}) != optimizer_digest(Derived{{.rate = 0.5}}));
  CHECK_NOTHROW(detail::require_numbers(optimizer_digest(Nothing{})));
  CHECK_THROWS_WITH(detail::require_numbers(optimizer_digest(Gaps{})),
                    Catch::Contains("auto fields() const"));
  CHECK(optimizer_digest(Named{}) != 0);
  CHECK(optimizer_digest(Named{}) == optimizer_digest(Named{.note = "of the second process"}));
  CHECK(optimizer_digest(Named{}) != optimizer_digest(Named{.kind = 2}));
  CHECK(optimizer_digest(Named{}) != optimizer_digest(Named{.rate = 0.25}));
  CHECK(optimizer_digest(Named{}) != optimizer_digest(Named{.warm_up = 20}));
}
