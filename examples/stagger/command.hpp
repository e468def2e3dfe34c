// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface of a command of the tool. Each command is one file in commands/, with a class and a
// line that registers it.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>

#include "flags.hpp"

namespace tool {

/// The output of a command, and the exit code of the program.
struct Answer {
  std::string text;   ///< the result, for standard output or --output
  std::string why{};  ///< why there is no result: one line for standard error
  int exit_code = 0;  ///< 0, or 1 where the answer is "no"
};

/// One command: its flags, and the function that runs it.
class Command {
 public:
  Command() = default;
  Command(Command const&) = delete;
  Command& operator=(Command const&) = delete;
  virtual ~Command() = default;

  /// Adds the command's flags and its worked example (the footer).
  virtual void flags(Flags& app) = 0;

  /// @throws stagger::Error for input that cannot be used
  virtual Answer run() = 0;

  /// Adds --json and, where there are several formats, --format; the first is the default.
  void add_formats(Flags& app, std::vector<std::string> formats);

  /// The format that was requested.
  /// @throws stagger::Error for an unknown one, or for two that differ
  [[nodiscard]] std::string const& format();

 private:
  std::vector<std::string> formats_{};
  std::string format_{};
  bool json_ = false;
};

/// An entry of the list of commands.
struct Entry {
  int order = 0;  ///< in the list that --help prints
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<Command> (*make)() = nullptr;
};

/// All commands, in order.
[[nodiscard]] std::vector<Entry> const& commands();

void add_command(Entry const& entry);

/// Registers a command: `Registered<Verify> const verify_registered{2, "verify", "..."};`.
template <class C> struct Registered {
  Registered(int order, std::string_view name, std::string_view summary) {
    add_command(
        {order, name, summary, []() -> std::unique_ptr<Command> { return std::make_unique<C>(); }});
  }
};

/// Throws an error about the command line.
[[noreturn]] void refuse(std::string const& sentence);

/// Joins words as a flag's help lists them: "text | json".
[[nodiscard]] std::string alternatives(std::vector<std::string> const& words);

/// Checks that a flag's value is a known word; the error suggests the nearest one.
void require_word(std::string const& flag, std::string const& word,
                  std::vector<std::string> const& known);

/// The name of the first of some flags that was given, or an empty string.
[[nodiscard]] std::string first_given(std::vector<Flag> const& flags);

/// Refuses flags that would change nothing.
/// @param before  what the sentence begins with, up to "leave --flag out"
void leave_out(std::vector<Flag> const& flags, std::string const& before);

/// Checks that a flag's number is finite and not negative.
void require_number(std::string const& flag, double value);

/// Checks that a flag's number is at least 1 or 0, which means that the flag is absent.
void require_count(Flag const& flag, int value);

/// Reads a whole file, or standard input for `-`.
/// @throws stagger::Error io
[[nodiscard]] std::string read_file(std::string const& path);

/// The name of a file in error messages.
[[nodiscard]] std::string source_name(std::string const& path);

}  // namespace tool
