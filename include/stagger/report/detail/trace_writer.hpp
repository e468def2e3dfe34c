// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Iterations as Chrome trace events that keep Perfetto's rules for slices and arrows.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/utf8.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/timeline.hpp>

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

/// Writes processes one after the other, each a sequence of iterations of one pipeline.
///
/// Perfetto sorts events by time and then by their place in the file, keeps one stack of open
/// slices per thread, and ties an arrow to the top of that stack. Hence: no two slices of a thread
/// start at the same nanosecond unless one encloses the other and comes first; every slice lasts a
/// nanosecond or more; arrows are written after their slices and point into the inside of them.
class TraceWriter {
 public:
  /// @param step_slices  whether a slice encloses the actions of each iteration
  explicit TraceWriter(bool step_slices) : step_slices_(step_slices) {}

  /// Opens a process with one thread per rank.
  void process(std::string_view name, int ranks) {
    process_end_ns_ = 0;
    tracks_.clear();
    events_.process(name);
    for (int r = 0; r < ranks; ++r)
      tracks_.push_back({.tid = events_.thread(text("rank ", r), r * 100)});
  }

  /// Writes one iteration, which starts when the one before it ended.
  void step(schedule::Timeline const& timeline, long long number) {
    std::int64_t const origin = process_end_ns_;
    if (origin > to_ns(4e9)) {
      raise(Errc::bad_data,
            "a trace of more than 4e9 s cannot be written; give the times in seconds");
    }
    slices_.clear();
    for (std::size_t r = 0; r < timeline.row_begin.size(); ++r) {
      auto const row = timeline.row(r);
      std::size_t const first = slices_.size();
      place_blocks(row, r, origin);
      if (step_slices_ && slices_.size() > first)  // before the slices that it encloses
        events_.slice(tracks_[r].tid, slices_[first].start_ns, slices_.back().end_ns,
                      text("step ", number), "step");
      for (std::size_t i = first; i < slices_.size(); ++i)
        write_slice(slices_[i], tracks_[r].tid, number);
      write_counter(r, first);
      write_messages(row, r, origin, number);
    }
    write_flows();
  }

  [[nodiscard]] std::string document() && { return std::move(events_).document(); }

 private:
  /// A placed action. `anchor_ns` is where its arrows bind: a time at which it is the innermost
  /// slice.
  struct Slice : Block {
    std::size_t row = 0;
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t anchor_ns = 0;
  };
  struct Lane {
    int tid = 0;
    std::int64_t end_ns = 0;
  };
  struct Track {
    int tid = 0;
    std::int64_t end_ns = std::numeric_limits<std::int64_t>::min();  ///< of its last slice
    std::vector<Lane> lanes{};  ///< threads of the rank's messages
  };

  [[nodiscard]] static std::int64_t to_ns(double seconds) {
    return static_cast<std::int64_t>(std::llround(seconds * 1e9));
  }

  void place_blocks(std::span<schedule::Span const> row, std::size_t r, std::int64_t origin) {
    Track& track = tracks_[r];
    for_each_block(row, [&](Block const& block) {
      Slice slice{block, r, origin + to_ns(block.start_s), origin + to_ns(block.end_s)};
      if (block.half == Half::second) {  // inside the first half, from its second nanosecond on
        slice.start_ns = slices_.back().start_ns + 1;
        slice.end_ns = slices_.back().end_ns;
      } else {  // despite coarse clocks, no action starts before the last one ended
        slice.start_ns = std::max(slice.start_ns, track.end_ns);
        slice.end_ns = std::max(slice.end_ns, slice.start_ns + (block.half == Half::first ? 2 : 1));
        track.end_ns = slice.end_ns;
      }
      slice.anchor_ns = slice.start_ns;
      if (block.half != Half::first) slice.anchor_ns += (slice.end_ns - slice.start_ns) / 2;
      slices_.push_back(slice);
      process_end_ns_ = std::max(process_end_ns_, slice.end_ns);
    });
  }

  /// Transfers overlap with computation, so they have tracks of their own: as many as overlap with
  /// each other.
  void write_messages(std::span<schedule::Span const> row, std::size_t r, std::int64_t origin,
                      long long number) {
    std::vector<Slice> messages;
    for (schedule::Span const& span : row) {
      if (!schedule::travels(span.action.kind)) continue;
      std::int64_t const start = origin + to_ns(span.start_s);
      std::int64_t const end = std::max(origin + to_ns(span.end_s), start + 1);
      messages.push_back({{span}, r, start, end, start});
    }
    auto const order = [](Slice const& one) {
      return std::tuple{one.start_ns,          one.end_ns,       one.action.stage,
                        one.action.microbatch, one.action.slice, one.action.kind};
    };
    std::sort(messages.begin(), messages.end(),
              [&](Slice const& a, Slice const& b) { return order(a) < order(b); });
    for (Slice const& message : messages) {
      process_end_ns_ = std::max(process_end_ns_, message.end_ns);
      write_slice(message, lane(r, message), number);
    }
  }

  /// The first of the rank's message tracks that is free when the message starts.
  [[nodiscard]] int lane(std::size_t r, Slice const& message) {
    std::vector<Lane>& lanes = tracks_[r].lanes;
    auto const free = std::find_if(lanes.begin(), lanes.end(),
                                   [&](Lane const& one) { return one.end_ns <= message.start_ns; });
    if (free != lanes.end()) {
      free->end_ns = message.end_ns;
      return free->tid;
    }
    int const number = static_cast<int>(lanes.size()) + 1;
    std::string const name =
        text("rank ", r, " messages", number > 1 ? text(" ", number) : std::string());
    lanes.push_back({events_.thread(name, static_cast<int>(r) * 100 + number), message.end_ns});
    return lanes.back().tid;
  }

  void write_slice(Slice const& slice, int tid, long long number) {
    schedule::Action const& action = slice.action;
    std::int64_t const exchange_ns = to_ns(slice.exchange_s);
    events_.slice(
        tid, slice.start_ns, slice.end_ns,
        schedule::to_string(action) + (slice.repeated ? " again" : ""),
        schedule::is_compute(action.kind) ? "compute"
        : schedule::travels(action.kind)  ? "message"
                                          : "reduction",
        text(",\"args\":{\"stage\":", action.stage, ",\"microbatch\":", action.microbatch,
             action.slice != 0 ? text(",\"slice\":", action.slice) : std::string(),
             slice.lacked >= 0 ? text(",\"lacked\":", slice.lacked) : std::string(),
             slice.lacked > 0 ? text(",\"lacked_of_worker\":", slice.lacked_of) : std::string(),
             exchange_ns > 0 ? text(",\"exchange_us\":", microseconds(exchange_ns)) : std::string(),
             ",\"step\":", number, "}"));
  }

  /// Microbatches in flight on a rank: up when an F has run, down when a B or W has.
  void write_counter(std::size_t r, std::size_t first) {
    auto const is_end = [](Slice const& slice) { return schedule::ends_flight(slice.action.kind); };
    auto const begin = slices_.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::none_of(begin, slices_.end(), is_end)) return;  // forward only: nothing is kept
    int live = 0;
    counter(r, begin->start_ns, live);
    for (auto slice = begin; slice != slices_.end(); ++slice) {
      if (slice->repeated) continue;
      // In a pair, F counts before the backward frees.
      if (slice->action.kind == schedule::Kind::forward) {
        counter(r, slice->half == Half::none ? slice->end_ns : slice->end_ns - 1, ++live);
      } else if (is_end(*slice) && live > 0) {
        counter(r, slice->end_ns, --live);
      }
    }
  }

  void counter(std::size_t r, std::int64_t at_ns, int value) {
    events_.counter(tracks_[r].tid, at_ns, text("rank ", r), "in flight", value);
  }

  /// Arrows from the producer of each activation and gradient to the rank that reads it.
  void write_flows() {
    std::vector<std::pair<Key, std::size_t>> producers;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      schedule::Action const& a = slices_[i].action;
      if (slices_[i].repeated) continue;  // its reader already has the value
      if (schedule::makes_value(a.kind)) producers.push_back({key_of(a, a.stage), i});
    }
    std::sort(producers.begin(), producers.end());
    for (Slice const& to : slices_) {
      bool const forward = to.action.kind == schedule::Kind::forward;
      if (to.repeated || !schedule::makes_value(to.action.kind)) continue;
      Key const wanted = key_of(to.action, to.action.stage + (forward ? -1 : 1));
      auto const found =
          std::lower_bound(producers.begin(), producers.end(), std::pair{wanted, std::size_t{0}});
      if (found == producers.end() || found->first != wanted) continue;
      Slice const& from = slices_[found->second];
      // An arrow cannot point back in time, as it would if clocks are coarser than actions.
      if (from.row == to.row || from.anchor_ns > to.anchor_ns) continue;
      char const* const name = forward ? "activation" : "gradient";
      events_.arrow(false, tracks_[from.row].tid, from.anchor_ns, ++flow_id_, name);
      events_.arrow(true, tracks_[to.row].tid, to.anchor_ns, flow_id_, name);
    }
  }

  using Key = std::tuple<bool, int, int, int>;  ///< forward, stage, microbatch, slice
  [[nodiscard]] static Key key_of(schedule::Action const& action, int stage) {
    return {action.kind == schedule::Kind::forward, stage, action.microbatch, action.slice};
  }

  TraceEvents events_{};
  bool step_slices_;
  long long flow_id_ = 0;
  std::int64_t process_end_ns_ = 0;
  std::vector<Track> tracks_;
  std::vector<Slice> slices_;  ///< of the iteration being written
};

}  // namespace stagger::report::detail
