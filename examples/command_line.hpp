// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Command lines read by CLI11, and error messages about them in the style of the library's.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include <stagger/core/error.hpp>
#include <stagger/version.hpp>

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

/// Ends with this sentence, as Errc::bad_configuration.
[[noreturn]] inline void refuse(std::string const& sentence) {
  throw stagger::Error(stagger::Errc::bad_configuration, sentence);
}

[[nodiscard]] inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// Refuses the value of a flag that is out of range.
inline void require(std::string const& flag, std::int64_t value, std::int64_t least,
                    std::int64_t most) {
  if (value < least || value > most)
    refuse(flag + " " + std::to_string(value) + " is out of range; use " + std::to_string(least) +
           " to " + std::to_string(most));
}

/// Refuses the value of a flag that is not above 0 and finite.
inline void require_positive(std::string const& flag, double value) {
  if (!(value > 0) || !std::isfinite(value))
    refuse(flag + " " + number(value) + " is no positive number; leave it out for the default");
}

/// Before options are added: --version, defaults in the help, and the last of repeated flags wins.
inline void prepare(CLI::App& app) {
  app.set_version_flag("--version", std::to_string(STAGGER_VERSION_MAJOR) + "." +
                                        std::to_string(STAGGER_VERSION_MINOR) + "." +
                                        std::to_string(STAGGER_VERSION_PATCH));
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
}

/// For the end of a program's help.
inline constexpr char const* outputs =
    "Results go to standard output, progress to standard error. Exit code 2: something that was "
    "given cannot\nbe used.";

/// Reads a command line.
/// @return  false if help or the version was requested and printed
/// @throws Error  with Errc::bad_configuration
[[nodiscard]] inline bool parsed(CLI::App& app, int argc, char const* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (CLI::Success const& asked) {
    app.exit(asked);
    return false;
  } catch (CLI::ParseError const& error) {
    refuse(error_message(app, error) + "; " + app.get_name() + " --help lists what there is");
  }
  return true;
}

}  // namespace cli
