// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/detail/from_chars.hpp>
#include <stagger/core/from_chars.hpp>

#include <clocale>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>

#include "catch.hpp"

namespace from_chars_test {

namespace {

struct Read {
  double value = 42;
  std::size_t length = 0;
  std::errc error{};
};
using Reader = std::from_chars_result (*)(char const*, char const*, double&);

Read read(Reader reader, std::string_view text) {
  Read read;
  auto const [stop, error] = reader(text.data(), text.data() + text.size(), read.value);
  return {read.value, static_cast<std::size_t>(stop - text.data()), error};
}

struct Case {
  std::string_view text;
  double value;
  std::size_t length;
};
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr Case cases[] = {
    {"0", 0, 1},
    {"12", 12, 2},
    {"-1.5e3,7", -1500, 6},
    {".5", 0.5, 2},
    {"5.", 5, 2},
    {"5.e1", 50, 4},
    {"1e", 1, 1},
    {"1e+", 1, 1},
    {"1e-2", 0.01, 4},
    {"1E+2]", 100, 4},
    {"0x10", 0, 1},
    {"1,5", 1, 1},
    {"inf", infinite, 3},
    {"-INFINITY", -infinite, 9},
    {"infinit", infinite, 3},
    {"1.2.3", 1.2, 3},
    {"5e-324", 5e-324, 6},
    {"1.7976931348623157e308", 1.7976931348623157e308, 22},
};
constexpr std::string_view refused[] = {"",   "-",   " 1",  "+1", ".", "-.",
                                        "e5", ".e5", "--1", "na", "x", "\t2"};

}  // namespace

TEST_CASE("core/from_chars: numbers are read as far as they go, and nothing before them is skipped",
          "[core]") {
  for (Reader const reader : {&stagger::from_chars, &stagger::detail::read_double}) {
    for (Case const& one : cases) {
      CAPTURE(one.text);
      Read const found = read(reader, one.text);
      CHECK(found.error == std::errc{});
      CHECK(found.value == one.value);
      CHECK(found.length == one.length);
    }
    for (auto const text : refused) {
      CAPTURE(text);
      Read const found = read(reader, text);
      CHECK(found.error == std::errc::invalid_argument);
      CHECK(found.value == 42);
      CHECK(found.length == 0);
    }
    Read const large = read(reader, "-1e999;");
    CHECK(large.error == std::errc::result_out_of_range);
    CHECK(large.value == 42);
    CHECK(large.length == 6);
    Read const not_a_number = read(reader, "nan");
    CHECK(std::isnan(not_a_number.value));
    CHECK(not_a_number.length == 3);
  }
}

TEST_CASE("core/from_chars: a number ends where the text does, not where its memory does",
          "[core]") {
  std::string const digits = "123456";
  double value = 0;
  auto const [stop, error] = stagger::detail::read_double(digits.data(), digits.data() + 3, value);
  CHECK(error == std::errc{});
  CHECK(value == 123);
  CHECK(stop == digits.data() + 3);
}

#ifdef __cpp_lib_to_chars
TEST_CASE("core/from_chars: our own reads random text as the standard library does", "[core]") {
  std::mt19937 random(7);
  std::string_view const letters = "0123456789..--eE+x inf,";
  int different = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (auto n = random() % 12; n != 0; --n) text += letters[random() % letters.size()];
    Read const ours = read(&stagger::detail::read_double, text);
    Read theirs;
    auto const [stop, error] =
        std::from_chars(text.data(), text.data() + text.size(), theirs.value);
    bool const same = ours.error == error && ours.value == theirs.value &&
                      ours.length == static_cast<std::size_t>(stop - text.data());
    if (!same && ++different == 1) UNSCOPED_INFO("first: '" << text << "'");
  }
  CHECK(different == 0);
}
#endif

TEST_CASE("core/from_chars: a locale with a decimal comma changes nothing", "[core]") {
  std::string const before = std::setlocale(LC_NUMERIC, nullptr);
  for (char const* const name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"}) {
    if (std::setlocale(LC_NUMERIC, name) != nullptr) break;
  }
  Read const found = read(&stagger::detail::read_double, "2.5");
  std::setlocale(LC_NUMERIC, before.c_str());
  CHECK(found.value == 2.5);
  CHECK(found.length == 3);
}

}  // namespace from_chars_test
