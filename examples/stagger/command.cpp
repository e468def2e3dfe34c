// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include <stagger/core/nearest.hpp>
#include <stagger/report/format.hpp>

namespace tool {

namespace {

std::vector<Entry>& list() {
  static std::vector<Entry> entries;
  return entries;
}

}  // namespace

std::vector<Entry> const& commands() { return list(); }

void add_command(Entry const& entry) {
  auto const at = std::find_if(list().begin(), list().end(),
                               [&](Entry const& other) { return other.order > entry.order; });
  list().insert(at, entry);
}

void Command::add_formats(Flags& app, std::vector<std::string> formats) {
  formats_ = std::move(formats);
  app.add("--format", format_,
          "Form of the result: " + alternatives(formats_) + "; the first is the default", "WORD");
  app.add("--json", json_, "The same as --format json");
}

std::string const& Command::format() {
  if (json_ && !format_.empty() && format_ != "json") {
    refuse("--json and --format " + format_ + " ask for two forms; leave one out");
  }
  if (json_) format_ = "json";
  if (format_.empty()) format_ = formats_.front();
  require_word("--format", format_, formats_);
  return format_;
}

void refuse(std::string const& sentence) {
  throw stagger::Error(stagger::Errc::bad_configuration, sentence);
}

std::string alternatives(std::vector<std::string> const& words) {
  std::string all;
  for (auto const& word : words) all += (all.empty() ? "" : " | ") + word;
  return all;
}

void require_word(std::string const& flag, std::string const& word,
                  std::vector<std::string> const& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  refuse(flag + " knows no '" + word + "'; the nearest is '" + stagger::nearest(word, known) + "'");
}

std::string first_given(std::vector<Flag> const& flags) {
  auto const first =
      std::find_if(flags.begin(), flags.end(), [](Flag const& flag) { return flag.given(); });
  return first == flags.end() ? std::string() : first->name();
}

void leave_out(std::vector<Flag> const& flags, std::string const& before) {
  if (std::string const flag = first_given(flags); !flag.empty())
    refuse(before + "; leave " + flag + " out");
}

void require_number(std::string const& flag, double value) {
  if (value >= 0 && value <= 1e300) return;
  refuse(flag + " " + stagger::report::format_shortest(value) +
         " cannot be used; give a number from 0 to 1e300");
}

void require_count(Flag const& flag, int value) {
  if (!flag.given() || value >= 1) return;
  refuse(flag.name() + " " + std::to_string(value) + " cannot be used; give 1 or more");
}

std::string source_name(std::string const& path) { return path == "-" ? "standard input" : path; }

std::string read_file(std::string const& path) {
  static bool taken = false;
  if (path == "-" && std::exchange(taken, true)) refuse("standard input can be read only once");
  auto const fail = [&]() {
    throw stagger::Error(stagger::Errc::io, "cannot read '" + path + "': " + std::strerror(errno));
  };
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) fail();
  std::string text;
  char piece[1 << 16];
  for (std::size_t n = 0; (n = std::fread(piece, 1, sizeof piece, file)) > 0;) {
    text.append(piece, n);
  }
  bool const failed = std::ferror(file) != 0;
  if (failed) fail();
  if (file != stdin) std::fclose(file);
  return text;
}

}  // namespace tool
