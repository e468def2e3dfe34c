// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/setup.hpp>

#include <cstdint>
#include <string>
#include <tuple>

#include <stagger/model/optimizer.hpp>

#include "catch.hpp"

namespace optimizer_numbers_test {

namespace {

using namespace stagger;
using detail::policy_digest;

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
  CHECK(policy_digest(plain) == policy_digest(optimizer::AdamW{}));
  for (double optimizer::AdamW::* number :
       {&optimizer::AdamW::rate, &optimizer::AdamW::beta1, &optimizer::AdamW::beta2,
        &optimizer::AdamW::epsilon, &optimizer::AdamW::weight_decay}) {
    optimizer::AdamW other;
    other.*number *= 1 + 0x1p-50;
    CHECK(policy_digest(other) != policy_digest(plain));
  }
  CHECK(policy_digest(optimizer::Sgd{}) != policy_digest(optimizer::Sgd{.momentum = 0.9}));
  CHECK(policy_digest(Floats{}) != policy_digest(Floats{.beta = 0.5F}));
  CHECK(policy_digest(Floats{}) == policy_digest(Floats{}));
}

TEST_CASE("engine/optimizer_numbers: words have the type, and numbers that differ read differently",
          "[engine]") {
  using detail::policy_words;
  CHECK(policy_words(optimizer::Sgd{.rate = 0.1, .momentum = 0.9}) ==
        "stagger::optimizer::Sgd(0.1, 0.9, 0)");
  CHECK(policy_words(optimizer::Sgd{.rate = 0.1 * (1 + 0x1p-50)}) ==
        "stagger::optimizer::Sgd(0.10000000000000009, 0, 0)");
  CHECK_THAT(policy_words(Floats{}), Catch::EndsWith("Floats(0.5, 0.25)"));
  CHECK_THAT(policy_words(Named{.rate = 0.25}), Catch::EndsWith("Named(1, 0.25, 10)"));
  CHECK_THAT(policy_words(Nothing{}), Catch::EndsWith("Nothing()"));
  CHECK_THAT(policy_words(Gaps{}), Catch::EndsWith("Gaps()"));
  CHECK_THAT(policy_words(Derived{{.rate = 0.5}}),
             Catch::EndsWith("Derived(0.5, 0.9, 0.999, 1e-08, 0.01)"));
}

TEST_CASE("engine/optimizer_numbers: numbers of any type are kept and set again", "[engine]") {
  using detail::policy_numbers;
  using detail::set_numbers;
  Named const from{.kind = -2, .rate = 1e-300, .warm_up = -7, .note = "stays there"};
  Named to{.note = "here"};
  CHECK(set_numbers(to, policy_numbers(from)));
  CHECK(to.kind == -2);
  CHECK(to.rate == 1e-300);
  CHECK(to.warm_up == -7);
  CHECK(to.note == "here");
  Floats floats;
  CHECK(set_numbers(floats, policy_numbers(Floats{.rate = 0.1F, .beta = -1})));
  CHECK(floats.rate == 0.1F);
  CHECK(floats.beta == -1);
  Derived derived;
  CHECK(set_numbers(derived, policy_numbers(Derived{{.beta2 = 0.5}})));
  CHECK(derived.beta2 == 0.5);
  CHECK(policy_numbers(Gaps{}).empty());
  CHECK(policy_numbers(Nothing{}).empty());
  std::string words = "(";
  detail::append_number(words, detail::policy_number(std::uint64_t{1} << 63U));
  detail::append_number(words, detail::policy_number(INT64_MIN));
  detail::append_number(words, detail::policy_number(0.1));
  CHECK(words == "(9223372036854775808, -9223372036854775808, 0.1");
  CHECK(detail::policy_name<optimizer::Sgd>() == "Sgd");
  CHECK(detail::policy_name<Derived>() == "AdamW");
  CHECK_THAT(detail::policy_name<Floats>(), Catch::EndsWith("Floats"));
}

TEST_CASE("engine/optimizer_numbers: bytes that are no numbers are not looked at", "[engine]") {
  CHECK(policy_digest(Gaps{}) == 0);
  CHECK(policy_digest(Nothing{}) != 0);
  CHECK(policy_digest(Derived{}) != policy_digest(Derived{{.rate = 0.5}}));
  CHECK_NOTHROW(detail::require_numbers(policy_digest(Nothing{})));
  CHECK_THROWS_WITH(detail::require_numbers(policy_digest(Gaps{})),
                    Catch::Contains("auto fields() const"));
  CHECK(policy_digest(Named{}) != 0);
  CHECK(policy_digest(Named{}) == policy_digest(Named{.note = "of the second process"}));
  CHECK(policy_digest(Named{}) != policy_digest(Named{.kind = 2}));
  CHECK(policy_digest(Named{}) != policy_digest(Named{.rate = 0.25}));
  CHECK(policy_digest(Named{}) != policy_digest(Named{.warm_up = 20}));
}

}  // namespace optimizer_numbers_test
