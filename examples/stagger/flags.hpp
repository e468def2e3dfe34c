// SPDX-License-Identifier: Apache-2.0
#pragma once
// The flags of a command. Only flags.cpp includes the parser, CLI11, which would double the time to
// compile each command.

#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tool {

/// A flag of a command.
class Flag {
 public:
  Flag() = default;
  explicit Flag(CLI::Option const* option) : option_(option) {}

  [[nodiscard]] bool given() const;
  [[nodiscard]] std::string name() const;

  /// Its value as written on the command line, if it was given.
  [[nodiscard]] std::string written() const;

 private:
  CLI::Option const* option_ = nullptr;
};

/// The flags of a command, and the parser of its command line.
class Flags {
 public:
  Flags(std::string const& program, std::string const& summary);
  ~Flags();
  Flags(Flags const&) = delete;
  Flags& operator=(Flags const&) = delete;

  /// Adds a flag that sets `value`; a name without hyphens is a positional argument.
  /// @tparam T     std::string, int or double
  /// @param type   name of the value in --help
  /// @param group  heading in --help
  template <class T>
  Flag add(std::string const& name, T& value, std::string const& what, std::string const& type = "",
           std::string const& group = "");

  /// Adds a flag without a value.
  Flag add(std::string const& name, bool& value, std::string const& what);

  /// Adds text below the list that --help prints.
  void footer(std::string const& text);

  /// Parses a command line.
  /// @return the help text if --help is given
  /// @throws stagger::Error for unknown flags and unusable values
  [[nodiscard]] std::optional<std::string> read(int argc, char const* const* argv);

 private:
  std::string program_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace tool
