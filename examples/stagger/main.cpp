// SPDX-License-Identifier: Apache-2.0
// Schedules, proofs, simulation, planning and gradient grouping on the command line. `stagger
// --help` explains the commands; each is a file in commands/.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <stagger/core/file.hpp>
#include <stagger/core/nearest.hpp>
#include <stagger/version.hpp>

#include "command.hpp"
#include "flags.hpp"

namespace {

constexpr int cannot_be_used = 2;

std::string usage() {
  std::string text =
      "Pipeline schedules: made, proven, simulated, and their gradients grouped.\n"
      "Usage: stagger COMMAND [FLAGS]\n\nCommands:\n";
  for (auto const& entry : tool::commands()) {
    text += "  " + std::string(entry.name);
    text.append(entry.name.size() < 12 ? 12 - entry.name.size() : 1, ' ');
    text += std::string(entry.summary) + "\n";
  }
  text +=
      "\n  stagger COMMAND --help   flags of a command, with an example\n"
      "  stagger --version        version of the library\n\n"
      "Results go to standard output, everything else to standard error. FILE may be - for "
      "standard\n"
      "input. Exit code 1: the answer is no, such as a table that deadlocks. 2: something that "
      "was\n"
      "given cannot be used.\n\n"
      "Example: make a table, then prove it:\n"
      "  stagger schedule --policy 1f1b --ranks 4 --microbatches 8 | stagger verify -\n";
  return text;
}

std::string version() {
  return std::to_string(STAGGER_VERSION_MAJOR) + "." + std::to_string(STAGGER_VERSION_MINOR) + "." +
         std::to_string(STAGGER_VERSION_PATCH);
}

void print(std::string const& text) {
  bool const whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!whole || std::fflush(stdout) != 0) {
    throw stagger::Error(stagger::Errc::io, "cannot write to standard output; use --output FILE");
  }
}

int run(int argc, char const* const* argv) {
  std::string const word = argc > 1 ? argv[1] : "";
  if (word.empty()) {
    tool::refuse("give a command; stagger --help lists them");
  }
  if (word == "--help" || word == "-h" || word == "help") {
    print(usage());
    return 0;
  }
  if (word == "--version") {
    print("stagger " + version() + "\n");
    return 0;
  }
  auto const& all = tool::commands();
  auto const entry =
      std::find_if(all.begin(), all.end(), [&](auto const& e) { return e.name == word; });
  if (entry == all.end()) {
    bool const flag = word.front() == '-';
    std::vector<std::string> known;
    if (flag) known = {"--help", "--version"};
    for (auto const& e : all) {
      if (!flag) known.emplace_back(e.name);
    }
    tool::refuse("there is no " + std::string(flag ? "flag" : "command") + " '" + word +
                 "'; the nearest is '" + stagger::nearest(word, known) + "'");
  }

  auto const command = entry->make();
  tool::Flags flags("stagger " + word, std::string(entry->summary));
  std::string output;
  command->flags(flags);
  flags.add("--output", output, "File for the result, written whole or not at all", "FILE");
  if (auto const help = flags.read(argc - 1, argv + 1)) {
    print(*help);
    return 0;
  }

  tool::Answer const answer = command->run();
  if (!answer.why.empty())
    std::fprintf(stderr, "stagger: %s\n", stagger::printable(answer.why).c_str());
  if (!output.empty() && !answer.text.empty()) {
    stagger::write_file(output, answer.text);
  } else {
    print(answer.text);
  }
  return answer.exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::string sentence;
  try {
    return run(argc, argv);
  } catch (std::bad_alloc const&) {
    sentence = "there is not enough memory; use fewer --ranks or --microbatches, or a smaller file";
  } catch (std::exception const& error) {
    sentence = error.what();
  }
  std::fprintf(stderr, "stagger: %s\n", stagger::printable(sentence).c_str());
  return cannot_be_used;
}
