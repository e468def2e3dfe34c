// SPDX-License-Identifier: Apache-2.0
#pragma once
// The flags of a command. What reads them, CLI11, is compiled in flags.cpp alone: in each command
// it would take as long as all the rest.

#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tool {

/// A flag that a command knows, and whether it was given.
class Flag {
 public:
  Flag() = default;
  explicit Flag(CLI::Option const* option) : option_(option) {}

  [[nodiscard]] bool given() const;
  [[nodiscard]] std::string name() const;

  /// Its value as it was written, where it was given.
  [[nodiscard]] std::string written() const;

 private:
  CLI::Option const* option_ = nullptr;
};

/// The flags that a command knows, and the command line read by them.
class Flags {
 public:
  Flags(std::string const& program, std::string const& summary);
  ~Flags();
  Flags(Flags const&) = delete;
  Flags& operator=(Flags const&) = delete;

  /// Adds a flag whose value goes to `value`; a name without hyphens is an argument.
  /// @param type   what --help calls its value
  /// @param group  heading below which --help lists it
  Flag add(std::string const& name, std::string& value, std::string const& what,
           std::string const& type = "", std::string const& group = "");
  Flag add(std::string const& name, int& value, std::string const& what, std::string const& type,
           std::string const& group = "");
  Flag add(std::string const& name, double& value, std::string const& what, std::string const& type,
           std::string const& group = "");

  /// Adds a flag without a value.
  Flag add(std::string const& name, bool& value, std::string const& what);

  /// Adds text below the list that --help prints.
  void footer(std::string const& text);

  /// Reads a command line.
  /// @return the text that --help asks for
  /// @throws stagger::Error for what the flags have no use for
  [[nodiscard]] std::optional<std::string> read(int argc, char const* const* argv);

 private:
  std::string program_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace tool
