// SPDX-License-Identifier: Apache-2.0
#include <stagger/model/parameter.hpp>

#include "catch.hpp"

#include <numeric>
#include <string>
#include <vector>

#include <stagger/model/split.hpp>

namespace parameter_test {

namespace sg = stagger;

TEST_CASE("model/Parameter: pieces by outputs and by inputs are cut from the first values",
          "[model]") {
  constexpr std::size_t inputs = 5;
  constexpr std::size_t outputs = 7;
  auto const fill = [](std::span<double> values, std::uint64_t seed, double scale) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scale * static_cast<double>(i + seed);
  };
  std::vector<double> numbers(inputs * outputs);
  fill(numbers, 3, 2);
  sg::Parameter<double> const given("weight", numbers, false);
  sg::Parameter<double> const filled("weight", inputs * outputs, fill, 3, 2, false);
  for (auto const& weight : {given, filled})  // [outputs][inputs]
    for (std::size_t const members : {1U, 2U, 3U, 5U})
      for (bool const by_outputs : {true, false}) {
        std::vector<int> times(numbers.size());
        for (std::size_t m = 0; m < members; ++m) {
          auto const own = sg::features_of(m, members, by_outputs ? outputs : inputs);
          sg::ParameterPiece piece{
              .first = own.first, .length = own.size(), .stride = inputs, .runs = outputs};
          if (by_outputs) piece = {.first = own.first * inputs, .length = own.size() * inputs};
          auto part = weight.piece(piece);
          CHECK(part.name() == "weight");
          CHECK_FALSE(part.decays());
          CHECK(part.size() == own.size() * (by_outputs ? inputs : outputs));
          CHECK(part.piece().whole == numbers.size());
          auto const values = part.adopt(0);
          REQUIRE(values.size() == part.size());
          for (std::size_t i = 0; i < values.size(); ++i) {
            std::size_t const row = by_outputs ? own.first + i / inputs : i / own.size();
            std::size_t const column = by_outputs ? i % inputs : own.first + i % own.size();
            CHECK(part.piece().element(i) == row * inputs + column);
            CHECK(values[i] == numbers[row * inputs + column]);
            ++times[row * inputs + column];
          }
        }
        CHECK(times == std::vector<int>(numbers.size(), 1));
      }
  CHECK(given.piece({}).size() == 0);
  sg::ParameterPiece const behind{.first = inputs * outputs - 1, .length = 2};
  std::string const sentence =
      "a piece of parameter 'weight' ends with element 35, but the parameter has 35 elements";
  CHECK_THROWS_WITH(given.piece(behind), Catch::Contains(sentence));
  CHECK_THROWS_WITH(filled.piece(behind), Catch::Contains(sentence));
  CHECK_THROWS_WITH(given.piece({.length = 3}).piece({.length = 2}),
                    Catch::Contains("a piece of parameter 'weight' cannot be cut again"));
  CHECK_THROWS_WITH(filled.piece({.length = 3, .stride = 2, .runs = 4}),
                    Catch::Contains("the runs of a piece of parameter 'weight' overlap, since 3 "
                                    "elements of each begin 2 after those before"));
  CHECK(given.piece().whole == 0);
  sg::Parameter<double> taken = given;
  static_cast<void>(taken.adopt(0));
  CHECK_THROWS_WITH(taken.piece({.length = 1}),
                    Catch::Contains("an engine has taken over its initial values"));
}

}  // namespace parameter_test
