// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/progress.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace progress_test {

namespace {

namespace report = stagger::report;

/// A stream that can be read back.
class Memory {
 public:
  Memory() : stream_(open_memstream(&data_, &size_)) { REQUIRE(stream_ != nullptr); }
  Memory(Memory const&) = delete;
  Memory& operator=(Memory const&) = delete;
  ~Memory() {
    std::fclose(stream_);
    std::free(data_);
  }
  [[nodiscard]] std::FILE* stream() const { return stream_; }
  [[nodiscard]] std::string text() const {
    std::fflush(stream_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_;
};

std::size_t count(std::string const& text, char c) {
  std::size_t n = 0;
  for (char const one : text) n += one == c ? 1 : 0;
  return n;
}

/// What stands on a terminal's lines after all that was written to it.
std::vector<std::string> screen(std::string const& text) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (text[i] == '\x1b') {
      i = text.find('m', i);
      REQUIRE(i != std::string::npos);
    } else {
      if (lines.back().size() <= column) lines.back().resize(column + 1, ' ');
      lines.back()[column++] = text[i];
    }
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

/// Sets a variable of the environment and puts the old value back.
class Environment {
 public:
  Environment(char const* name, char const* value) : name_(name) {
    if (char const* const old = std::getenv(name)) old_ = old;
    if (value == nullptr) {
      unsetenv(name);
    } else {
      setenv(name, value, 1);
    }
  }
  Environment(Environment const&) = delete;
  Environment& operator=(Environment const&) = delete;
  ~Environment() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  char const* name_;
  std::optional<std::string> old_;
};

}  // namespace

TEST_CASE(
    "report/Progress: on a terminal one line is written over and nothing of a longer one stays",
    "[report]") {
  Memory memory;
  report::ProgressOptions options;
  options.terminal = true;
  report::Progress progress(memory.stream(), options, 2000, 0, 100);
  CHECK(progress.update(10, 5.5, 10'000, 110));
  CHECK(screen(memory.text()) ==
        std::vector<std::string>{"step   10/2000  loss 5.5000  1.00 k tokens/s  33:10 left"});
  CHECK(progress.update(1990, 123456.75, 20'000, 300));
  CHECK(progress.update(1999, 2.25, 1, 301));
  CHECK(screen(memory.text()) ==
        std::vector<std::string>{"step 1999/2000  loss 2.2500  0.005 tokens/s  0:00 left"});
  CHECK(progress.update(2000, 2.25, 402'000, 301));
  progress.finish();
  CHECK(screen(memory.text()) ==
        std::vector<std::string>{"step 2000/2000  loss 2.2500  2.00 k tokens/s  3:21 in all", ""});
  CHECK(memory.text().find('\x1b') == std::string::npos);  // no colour was asked for
  CHECK(count(memory.text(), '\n') == 1);
}

TEST_CASE(
    "report/Progress: on a terminal it redraws ten times a second at most, and always at the end",
    "[report]") {
  Memory memory;
  report::ProgressOptions options;
  options.terminal = true;
  report::Progress progress(memory.stream(), options, 10'000, 0, 0);
  int writes = 0;
  for (int step = 1; step <= 10'000; ++step)
    writes += progress.update(step, 1, step, step / 1000.0) ? 1 : 0;
  CHECK(writes >= 90);
  CHECK(writes <= 102);
  CHECK_THAT(screen(memory.text()).back(), Catch::StartsWith("step 10000/10000"));
}

TEST_CASE("report/Progress: a line never grows wider than it may, colours aside", "[report]") {
  for (bool const color : {false, true}) {
    for (int const width : {1, 10, 30, 200}) {
      Memory memory;
      report::ProgressOptions options;
      options.terminal = true;
      options.color = color;
      options.width = width;
      report::Progress progress(memory.stream(), options, 100, 0, 0);
      progress.update(50, 2.5, 1e6, 10);
      std::string const line = screen(memory.text()).back();
      CHECK(line.size() <= static_cast<std::size_t>(width));
      std::string const text = memory.text();
      std::size_t const codes = count(text, '\x1b');
      CHECK(codes == (color && width > 20 ? 2U : 0U));
    }
  }
}

TEST_CASE("report/Progress: other output can take the line's place", "[report]") {
  Memory memory;
  report::ProgressOptions options;
  options.terminal = true;
  report::Progress progress(memory.stream(), options, 100, 0, 0);
  progress.update(1, 1, 1, 1);
  progress.clear();
  std::fputs("saved\n", memory.stream());
  CHECK(progress.update(2, 1, 1, 1.001));  // drawn again at once
  auto const lines = screen(memory.text());
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "saved");
  CHECK_THAT(lines[1], Catch::StartsWith("step   2/100"));
}

TEST_CASE(
    "report/Progress: elsewhere each report is a plain line, the first, the last, and after five "
    "seconds",
    "[report]") {
  Memory memory;
  report::Progress progress(memory.stream(), {}, 35, 0, 0);
  std::vector<int> written;
  double now = 0;
  for (int step = 1; step <= 35; ++step) {
    now += step == 14 ? 6 : 0.2;
    if (progress.update(step, 3, 100.0 * step, now)) written.push_back(step);
  }
  progress.clear();
  progress.finish();
  CHECK(written == std::vector<int>{1, 14, 35});
  CHECK(count(memory.text(), '\n') == written.size());
  CHECK(count(memory.text(), '\r') == 0);
  CHECK(count(memory.text(), '\x1b') == 0);
  CHECK_THAT(memory.text(),
             Catch::StartsWith("step  1/35  loss 3.0000  500 tokens/s  0:07 left\n"));
}

TEST_CASE("report/Progress: a resumed run judges the time left by its own steps", "[report]") {
  Memory memory;
  report::Progress progress(memory.stream(), {}, 200, 100, 50);
  progress.update(110, std::nan(""), 5000, 60);  // 10 steps in 10 s, 90 to go
  CHECK(memory.text() == "step 110/200  loss nan  500 tokens/s  1:30 left\n");
}

TEST_CASE("report/Progress: before any time has passed nothing is claimed", "[report]") {
  Memory memory;
  report::Progress progress(memory.stream(), {}, 5, 0, 7);
  progress.update(0, 1, 0, 7);
  CHECK(memory.text() == "step 0/5  loss 1.0000  - tokens/s  -:-- left\n");
}

TEST_CASE("report/Progress: what is processed may have another name than tokens", "[report]") {
  Memory memory;
  report::ProgressOptions options;
  options.unit = "images";
  report::Progress progress(memory.stream(), options, 20, 0, 0);
  progress.update(10, 1, 320, 10);
  CHECK(memory.text() == "step 10/20  loss 1.0000  32 images/s  0:10 left\n");
}

TEST_CASE("report/progress_options: a file is no terminal", "[report]") {
  Memory memory;
  Environment const term("TERM", "xterm");
  CHECK_FALSE(report::progress_options(memory.stream()).terminal);
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  CHECK_FALSE(report::progress_options(file).terminal);
  CHECK_FALSE(report::progress_options(file).color);
  std::fclose(file);
}

TEST_CASE("report/progress_options: a terminal obeys NO_COLOR and TERM", "[report]") {
  int const master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
    return;  // a machine without terminals
  int const slave = ::open(ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(slave >= 0);
  std::FILE* const terminal = fdopen(slave, "w");
  REQUIRE(terminal != nullptr);
  auto const with = [&](char const* term, char const* no_color) {
    Environment const a("TERM", term);
    Environment const b("NO_COLOR", no_color);
    auto const options = report::progress_options(terminal);
    return std::pair{options.terminal, options.color};
  };
  CHECK(with("xterm", nullptr) == std::pair{true, true});
  CHECK(with("xterm", "") == std::pair{true, true});  // no-color.org: "when present and not empty"
  CHECK(with("xterm", "1") == std::pair{true, false});
  CHECK(with("dumb", nullptr) == std::pair{false, false});
  CHECK(with(nullptr, nullptr) == std::pair{false, false});
  std::fclose(terminal);
  ::close(master);
}

}  // namespace progress_test
