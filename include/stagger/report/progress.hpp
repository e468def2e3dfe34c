// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Progress of a long run: one line that is rewritten in place on a terminal, log
///         lines elsewhere.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>

namespace stagger::report {

struct ProgressOptions {
  bool terminal = false;        ///< one line that is written over; false: a line per report
  bool color = false;           ///< ANSI colours; never without a terminal
  int width = 79;               ///< characters that the line may take on a terminal
  char const* unit = "tokens";  ///< what is processed
};

/// The options that suit a stream: a terminal is written over, in colour unless `NO_COLOR` is set
/// or `TERM` is "dumb".
[[nodiscard]] inline ProgressOptions progress_options(std::FILE* out) {
  ProgressOptions options;
  char const* const no_color = std::getenv("NO_COLOR");
  char const* const term = std::getenv("TERM");
  bool const dumb = term == nullptr || std::string_view{term} == "dumb" || *term == '\0';
  options.terminal = isatty(fileno(out)) == 1 && !dumb;
  winsize size{};
  if (options.terminal && ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
    options.width = std::min(size.ws_col - 1, 119);
  }
  options.color = options.terminal && (no_color == nullptr || *no_color == '\0');
  return options;
}

/// Shows step, loss, tokens (or what the options name) per second and time left. It reads no clock:
/// every call is told the time.
///
/// On a terminal the line is redrawn at most ten times a second; elsewhere a line is written every
/// five seconds. The first and the last step are always shown. A failing stream is ignored: a run
/// must not fail because its progress cannot be shown.
class Progress {
 public:
  /// @param out         not owned; must outlive this object
  /// @param steps       number of the last step, > first_step
  /// @param first_step  steps done before this run started, for a resumed one
  /// @param now_s       seconds on any clock that does not go back
  Progress(std::FILE* out, ProgressOptions const& options, long long steps, long long first_step,
           double now_s)
      : out_(out),
        options_(options),
        steps_(steps),
        first_step_(first_step),
        begin_s_(now_s),
        shown_s_(now_s) {}

  /// Reports that `step` steps are done, with the last loss and the tokens that this run has
  /// processed so far.
  /// @return   whether anything was written
  bool update(long long step, double loss, double tokens, double now_s) {
    bool const due =
        step >= steps_ || !shown_once_ || now_s - shown_s_ >= (options_.terminal ? 0.1 : 5);
    if (!due) return false;
    shown_once_ = true;
    shown_s_ = now_s;
    write(line(step, loss, tokens, now_s));
    return true;
  }

  /// Erases the line from the terminal, so that something else can be printed; the next update
  /// draws it again.
  void clear() {
    if (!options_.terminal || drawn_ == 0) return;
    put(stagger::text("\r", std::string(drawn_, ' '), "\r"));
    drawn_ = 0;
    shown_once_ = false;
  }

  /// Keeps the line and moves to the next one.
  void finish() {
    if (options_.terminal && drawn_ > 0) put("\n");
    drawn_ = 0;
  }

 private:
  [[nodiscard]] std::string line(long long step, double loss, double tokens, double now_s) const {
    double const passed = now_s - begin_s_;
    auto const done = static_cast<double>(step - first_step_);
    double const left =
        done > 0 ? passed / done * static_cast<double>(std::max(steps_ - step, 0LL)) : -1;
    std::string const total = std::to_string(steps_);
    std::string number = std::to_string(step);
    if (number.size() < total.size()) number.insert(0, total.size() - number.size(), ' ');
    std::string text = "step " + number + "/" + total + "  loss " + format_fixed(loss, 4) + "  ";
    text += (passed > 0 ? format_count(tokens / passed) : std::string("-")) + " " + options_.unit +
            "/s  ";
    return text +
           (step >= steps_ ? format_clock(passed) + " in all" : format_clock(left) + " left");
  }

  void write(std::string text) {
    if (!options_.terminal) {
      put(text + "\n");
      return;
    }
    text.resize(std::min(text.size(), static_cast<std::size_t>(std::max(options_.width, 1))));
    std::size_t const length = text.size();
    // Overwrites the rest of a longer line.
    std::string const blanks(drawn_ > length ? drawn_ - length : 0, ' ');
    std::size_t const loss = text.find("loss ");
    if (options_.color && loss != std::string::npos) {
      std::size_t const end = std::min(text.find("  ", loss), text.size());
      text.insert(end, "\x1b[0m");
      text.insert(loss, "\x1b[1;36m");
    }
    put("\r" + text + blanks);
    drawn_ = length;
  }

  void put(std::string const& text) {
    std::fwrite(text.data(), 1, text.size(), out_);
    std::fflush(out_);
  }

  std::FILE* out_;
  ProgressOptions options_;
  long long steps_;
  long long first_step_;
  double begin_s_;
  double shown_s_;
  bool shown_once_ = false;
  std::size_t drawn_ = 0;  ///< characters of the line that is on the terminal
};

}  // namespace stagger::report
