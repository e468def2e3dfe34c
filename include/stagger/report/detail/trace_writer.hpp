// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Writes Chrome trace events that keep Perfetto's rules: nested slices, bound arrows,
/// unique ids.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/detail/blocks.hpp>
#include <stagger/report/detail/escape.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// Where finished text goes, without a template in every function.
struct TextSink {
  void* target = nullptr;
  void (*write)(void* target, std::string_view text) = nullptr;
};

/// Writes processes one after the other, each a sequence of iterations of one pipeline.
///
/// Perfetto sorts events by time and then by their place in the file, keeps one stack of open
/// slices per thread, and ties an arrow to the top of that stack. Hence: no two slices of a thread
/// start at the same nanosecond unless one encloses the other and comes first; every slice lasts a
/// nanosecond or more; arrows are written after their slices and point into the inside of them.
/// Thread ids are unique over all processes, and none equals a process id, because Perfetto would
/// take it for that process's main thread.
class TraceWriter {
 public:
  TraceWriter(TextSink sink, bool flows, bool counters, bool step_slices)
      : sink_(sink), flows_(flows), counters_(counters), step_slices_(step_slices) {
    text_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  }

  /// Opens a process with one thread per rank.
  void process(std::string_view name, int ranks) {
    ++pid_;
    process_end_ns_ = 0;
    tracks_.clear();
    metadata("process_name", 0, "name", name);
    metadata("process_sort_index", 0, "sort_index", pid_);
    for (int r = 0; r < ranks; ++r) {
      Track track;
      track.tid = next_tid_++;
      metadata("thread_name", track.tid, "name", "rank " + std::to_string(r));
      metadata("thread_sort_index", track.tid, "sort_index", r * 100);
      tracks_.push_back(track);
    }
  }

  /// Writes one iteration that starts `start_s` seconds into the trace; negative: when the one
  /// before it ended.
  void step(schedule::Timeline const& timeline, long long number, double start_s) {
    std::int64_t const origin = start_s >= 0 ? to_ns(start_s) : process_end_ns_;
    if (origin > to_ns(4e9)) {
      raise(Errc::bad_data, "a trace of more than 4e9 s; give the times in seconds");
    }
    slices_.clear();
    for (std::size_t r = 0; r < timeline.rows.size(); ++r) {
      std::size_t const first = slices_.size();
      place_blocks(timeline.rows[r], r, origin);
      if (step_slices_ && slices_.size() > first)
        write_step(r, number, slices_[first], slices_.back());
      for (std::size_t i = first; i < slices_.size(); ++i)
        write_slice(slices_[i], tracks_[r].tid, number);
      if (counters_) write_counter(r, first);
      write_messages(timeline.rows[r], r, origin, number);
    }
    if (flows_) write_flows();
    flush(flush_bytes);
  }

  /// Closes the JSON.
  void finish() {
    text_ += "\n]}\n";
    flush(0);
  }

 private:
  static constexpr std::size_t flush_bytes = 1U << 16U;

  /// A placed compute action. `anchor_ns` is where its arrows bind: a time at which it is the
  /// innermost slice.
  struct Slice {
    schedule::Action action;
    std::size_t row = 0;
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t anchor_ns = 0;
    Half half = Half::none;
    bool repeated = false;
  };
  struct Lane {
    int tid = 0;
    std::int64_t end_ns = 0;
  };
  struct Track {
    int tid = 0;
    std::int64_t end_ns =
        std::numeric_limits<std::int64_t>::min();  ///< end of the last slice on it
    std::vector<Lane> lanes{};                     ///< threads of the rank's messages
  };

  [[nodiscard]] static std::int64_t to_ns(double seconds) {
    return static_cast<std::int64_t>(std::llround(seconds * 1e9));
  }

  void place_blocks(std::vector<schedule::Span> const& row, std::size_t r, std::int64_t origin) {
    Track& track = tracks_[r];
    for_each_block(row, [&](Block const& block) {
      Slice slice{block.action,
                  r,
                  origin + to_ns(block.start_s),
                  origin + to_ns(block.end_s),
                  0,
                  block.half,
                  block.repeated};
      if (block.half == Half::second) {  // inside the first half, from its second nanosecond on
        slice.start_ns = slices_.back().start_ns + 1;
        slice.end_ns = slices_.back().end_ns;
      } else {  // clocks tie and tick: an action never starts before the one before it ended
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

  /// Transfers run beside the computation, so they stand on tracks of their own, as many as
  /// overlap.
  void write_messages(std::vector<schedule::Span> const& row, std::size_t r, std::int64_t origin,
                      long long number) {
    std::vector<Slice> messages;
    for (schedule::Span const& span : row) {
      if (!schedule::is_message(span.action.kind)) continue;
      std::int64_t const start = origin + to_ns(span.start_s);
      std::int64_t const end = std::max(origin + to_ns(span.end_s), start + 1);
      messages.push_back({span.action, r, start, end, start, Half::none, false});
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
    int const index = static_cast<int>(lanes.size());
    lanes.push_back({next_tid_++, message.end_ns});
    std::string name = "rank " + std::to_string(r) + " messages";
    if (index > 0) name += text(" ", index + 1);
    metadata("thread_name", lanes.back().tid, "name", name);
    metadata("thread_sort_index", lanes.back().tid, "sort_index",
             static_cast<int>(r) * 100 + index + 1);
    return lanes.back().tid;
  }

  /// The slice around all actions of a rank in one iteration; it comes before them in the file.
  void write_step(std::size_t r, long long number, Slice const& first, Slice const& last) {
    begin_event("X", tracks_[r].tid);
    time("ts", first.start_ns);
    time("dur", last.end_ns - first.start_ns);
    text_ += ",\"name\":\"step " + std::to_string(number) + "\",\"cat\":\"step\"}";
  }

  void write_slice(Slice const& slice, int tid, long long number) {
    schedule::Action const& action = slice.action;
    begin_event("X", tid);
    time("ts", slice.start_ns);
    time("dur", slice.end_ns - slice.start_ns);
    text_ += ",\"name\":\"" + schedule::to_string(action) + (slice.repeated ? " again" : "") +
             "\",\"cat\":\"";
    text_ += schedule::is_compute(action.kind)   ? "compute"
             : schedule::is_message(action.kind) ? "message"
                                                 : "reduction";
    text_ += "\",\"args\":{\"stage\":" + std::to_string(action.stage);
    text_ += ",\"microbatch\":" + std::to_string(action.microbatch);
    if (action.slice != 0) text_ += ",\"slice\":" + std::to_string(action.slice);
    text_ += ",\"step\":" + std::to_string(number) + "}}";
    flush(flush_bytes);
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
      if (slice->action.kind ==
          schedule::Kind::forward) {  // in a pair, F counts before the backward frees
        counter(r, slice->half == Half::none ? slice->end_ns : slice->end_ns - 1, ++live);
      } else if (is_end(*slice) && live > 0) {
        counter(r, slice->end_ns, --live);
      }
    }
  }

  void counter(std::size_t r, std::int64_t at_ns, int value) {
    begin_event("C", tracks_[r].tid);
    time("ts", at_ns);
    text_ += ",\"name\":\"rank " + std::to_string(r);
    text_ += "\",\"args\":{\"in flight\":" + std::to_string(value) + "}}";
    flush(flush_bytes);
  }

  /// Arrows from the producer of each activation and gradient to the rank that reads it.
  void write_flows() {
    std::vector<std::pair<Key, std::size_t>> producers;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      schedule::Action const& a = slices_[i].action;
      if (slices_[i].repeated) continue;  // its reader has had it
      if (!schedule::is_compute(a.kind)) continue;
      if (schedule::ends_flight(a.kind) && !schedule::gives_input_gradient(a.kind))
        continue;  // W feeds no stage
      producers.push_back({key_of(a, a.stage), i});
    }
    std::sort(producers.begin(), producers.end());
    for (Slice const& to : slices_) {
      bool const forward = to.action.kind == schedule::Kind::forward;
      if (to.repeated) continue;
      if (!forward && !schedule::gives_input_gradient(to.action.kind)) continue;
      Key const wanted = key_of(to.action, to.action.stage + (forward ? -1 : 1));
      auto const found =
          std::lower_bound(producers.begin(), producers.end(), std::pair{wanted, std::size_t{0}});
      if (found == producers.end() || found->first != wanted) continue;
      Slice const& from = slices_[found->second];
      // an arrow cannot point back in time: left out where clock ticks are coarser than the actions
      if (from.row == to.row || from.anchor_ns > to.anchor_ns) continue;
      ++flow_id_;
      arrow("s", from, forward);
      arrow("f", to, forward);
      flush(flush_bytes);
    }
  }

  void arrow(char const* phase, Slice const& slice, bool forward) {
    begin_event(phase, tracks_[slice.row].tid);
    time("ts", slice.anchor_ns);
    text_ += ",\"id\":" + std::to_string(flow_id_);
    text_ += forward ? ",\"name\":\"activation\"" : ",\"name\":\"gradient\"";
    text_ += *phase == 'f' ? ",\"cat\":\"flow\",\"bp\":\"e\"}" : ",\"cat\":\"flow\"}";
  }

  void metadata(char const* what, int tid, char const* key, std::string_view value) {
    begin_event("M", tid);
    ((((text_ += ",\"name\":\"") += what) += "\",\"args\":{\"") += key) += "\":\"";
    append_json(text_, value);
    text_ += "\"}}";
  }

  void metadata(char const* what, int tid, char const* key, int value) {
    begin_event("M", tid);
    ((((text_ += ",\"name\":\"") += what) += "\",\"args\":{\"") += key) += "\":";
    text_ += std::to_string(value) + "}}";
  }

  void begin_event(char const* phase, int tid) {
    text_ += first_ ? "\n{\"ph\":\"" : ",\n{\"ph\":\"";
    first_ = false;
    (text_ += phase) += "\",\"pid\":" + std::to_string(pid_);
    if (tid != 0) text_ += ",\"tid\":" + std::to_string(tid);
  }

  /// A time in microseconds, exact to the nanosecond.
  void time(char const* key, std::int64_t ns) {
    std::string digits = std::to_string(ns < 0 ? -ns : ns);
    if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
    digits.insert(digits.size() - 3, 1, '.');
    ((text_ += ",\"") += key) += ns < 0 ? "\":-" : "\":";
    text_ += digits;
  }

  void flush(std::size_t limit) {
    if (text_.size() <= limit) return;
    sink_.write(sink_.target, text_);
    text_.clear();
  }

  using Key = std::tuple<bool, int, int, int>;  ///< forward, stage, microbatch, slice
  [[nodiscard]] static Key key_of(schedule::Action const& action, int stage) {
    return {action.kind == schedule::Kind::forward, stage, action.microbatch, action.slice};
  }

  TextSink sink_;
  bool flows_;
  bool counters_;
  bool step_slices_;
  bool first_ = true;
  int pid_ = 0;
  int next_tid_ = 1000;
  long long flow_id_ = 0;
  std::int64_t process_end_ns_ = 0;
  std::string text_;
  std::vector<Track> tracks_;
  std::vector<Slice> slices_;  ///< of the iteration being written
};

}  // namespace stagger::report::detail
