// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The events of a Chrome trace as JSON text.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/escape.hpp>

namespace stagger::report::detail {

/// A time in microseconds, exact to the nanosecond.
[[nodiscard]] inline std::string microseconds(std::int64_t ns) {
  std::string digits = std::to_string(ns < 0 ? -ns : ns);
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  digits.insert(digits.size() - 3, 1, '.');
  return (ns < 0 ? "-" : "") + digits;
}

/// Writes events one after the other. Times are nanoseconds from the beginning of the trace.
class TraceEvents {
 public:
  /// Opens a process; further events belong to it.
  void process(std::string_view name) {
    ++pid_;
    name_track("process", 0, name, pid_);
  }

  /// Opens a thread. Ids are unique over all processes, and none equals a process id, because
  /// Perfetto would take it for that process's main thread.
  /// @param place  among the threads of the process, from above
  /// @return       its id
  [[nodiscard]] int thread(std::string_view name, int place) {
    name_track("thread", ++tid_, name, place);
    return tid_;
  }

  /// @param details  further members of the event
  void slice(int tid, std::int64_t start_ns, std::int64_t end_ns, std::string_view name,
             char const* category, std::string_view details = {}) {
    begin("X", tid);
    time("ts", start_ns);
    time("dur", end_ns - start_ns);
    text_ += text(",\"name\":\"", name, "\",\"cat\":\"", category, "\"", details, "}");
  }

  void counter(int tid, std::int64_t at_ns, std::string_view name, char const* what, int value) {
    begin("C", tid);
    time("ts", at_ns);
    text_ += text(",\"name\":\"", name, "\",\"args\":{\"", what, "\":", value, "}}");
  }

  /// One end of an arrow.
  /// @param head  the end that it points to
  void arrow(bool head, int tid, std::int64_t at_ns, long long id, char const* name) {
    begin(head ? "f" : "s", tid);
    time("ts", at_ns);
    text_ += text(",\"id\":", id, ",\"name\":\"", name, "\",\"cat\":\"flow\"",
                  head ? ",\"bp\":\"e\"}" : "}");
  }

  /// The whole trace.
  [[nodiscard]] std::string document() && { return std::move(text_) + "\n]}\n"; }

 private:
  void name_track(char const* what, int tid, std::string_view name, int place) {
    begin("M", tid);
    text_ += text(",\"name\":\"", what, "_name\",\"args\":{\"name\":\"");
    append_json(text_, name);
    text_ += "\"}}";
    begin("M", tid);
    text_ += text(",\"name\":\"", what, "_sort_index\",\"args\":{\"sort_index\":", place, "}}");
  }

  void begin(char const* phase, int tid) {
    text_ += text(first_ ? "\n" : ",\n", "{\"ph\":\"", phase, "\",\"pid\":", pid_);
    first_ = false;
    if (tid != 0) text_ += text(",\"tid\":", tid);
  }

  void time(char const* key, std::int64_t ns) {
    text_ += text(",\"", key, "\":", microseconds(ns));
  }

  std::string text_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  bool first_ = true;
  int pid_ = 0;
  int tid_ = 999;
};

}  // namespace stagger::report::detail
