// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Error messages about command lines, from those of CLI11.

#include <cstdlib>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace cli {

/// Rewrites CLI11's message about a command line in the style of the library's errors.
[[nodiscard]] inline std::string error_message(CLI::App const& app, CLI::ParseError const& error) {
  std::string const what = error.what();
  std::string_view const converted = "Could not convert: ";
  if (what.substr(0, converted.size()) == converted) {  // "Could not convert: --flag = value"
    std::size_t const equals = what.find(" = ");
    std::string const flag = what.substr(converted.size(), equals - converted.size());
    std::string const value = equals == std::string::npos ? "" : what.substr(equals + 3);
    CLI::Option const* const option = app.get_option_no_throw(flag);
    if (option != nullptr && option->get_items_expected_max() == 0) return flag + " takes no value";
    char* end = nullptr;
    std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0')
      return flag + " '" + value + "' is no number; give one, such as 4";
    if (value.find_first_not_of("+-0123456789") != std::string::npos)
      return flag + " " + value + " cannot be used; give a whole number, or a smaller one";
    return flag + " " + value + " is out of range; give a number closer to 0";
  }
  if (dynamic_cast<CLI::ArgumentMismatch const*>(&error) != nullptr) {
    std::string const flag = what.substr(0, what.find_first_of(": "));
    return flag + (what.find("required") != std::string::npos ? " needs a value behind it"
                                                              : " takes no value");
  }
  if (dynamic_cast<CLI::ExtrasError const*>(&error) != nullptr) {
    std::size_t const colon = what.rfind(": ");
    std::string const word = colon == std::string::npos ? what : what.substr(colon + 2);
    return (word.front() == '-' ? "there is no flag '" : "there is no use for '") + word + "'";
  }
  return what;
}

}  // namespace cli
