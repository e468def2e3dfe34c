// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/trace.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "report/json.hpp"
#include "report/sample.hpp"

namespace trace_test {

namespace {

namespace report = stagger::report;
using sample::Action;
using sample::Kind;
using sample::Span;
using sample::Timeline;

/// Microseconds with three decimals, as nanoseconds, without a detour over floating point.
std::int64_t ns(json::Value const& value) {
  std::string text = value.text;
  std::size_t const point = text.find('.');
  REQUIRE(point != std::string::npos);
  REQUIRE(text.size() == point + 4);
  text.erase(point, 1);
  return std::stoll(text);
}

/// A slice as a viewer sees it, after it has read the whole file.
struct Slice {
  int tid;
  std::int64_t start, end;
  std::string name, category;
  int step;
  bool operator==(Slice const&) const = default;
};

/// Reads a trace the way Perfetto's importer does: events sorted by time and then by place in the
/// file, a stack of open slices per thread, arrows tied to the top of the stack.
struct Viewer {
  std::vector<Slice> slices;
  std::vector<std::pair<std::string, std::string>> arrows;      // "pid/rank/name" of both ends
  std::map<std::string, std::map<std::int64_t, int>> counters;  // the last value of a time shows
  std::map<int, std::string> processes, threads;
  std::map<int, int> process_of;
  std::size_t nested = 0;

  explicit Viewer(std::string const& text) {
    json::Value const root = json::parse(text);
    auto const& events = root.at("traceEvents").items;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (events[i].at("ph").text == "M") {
        metadata(events[i]);
      } else {
        order.push_back(i);
      }
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair{ns(events[a].at("ts")), a} < std::pair{ns(events[b].at("ts")), b};
    });
    std::map<int, std::vector<std::size_t>> stacks;
    std::map<std::string, std::string> begun;
    std::set<std::string> ended;
    for (std::size_t const i : order) {
      json::Value const& e = events[i];
      std::string const phase = e.at("ph").text;
      int const tid = static_cast<int>(e.at("tid").number);
      REQUIRE(threads.count(tid) == 1);
      REQUIRE(process_of.at(tid) == static_cast<int>(e.at("pid").number));
      std::int64_t const at = ns(e.at("ts"));
      auto& stack = stacks[tid];
      if (phase == "X") {
        std::int64_t const length = ns(e.at("dur"));
        REQUIRE(length >= 1);
        while (!stack.empty() && slices[stack.back()].end <= at) stack.pop_back();
        if (!stack.empty()) {
          REQUIRE(slices[stack.back()].end >= at + length);  // nested, never overlapping
          ++nested;
        }
        int const step = e.has("args") ? static_cast<int>(e.at("args").at("step").number) : -1;
        stack.push_back(slices.size());
        slices.push_back({tid, at, at + length, e.at("name").text, e.at("cat").text, step});
      } else if (phase == "s" || phase == "f") {
        REQUIRE_FALSE(stack.empty());
        Slice const& top = slices[stack.back()];
        REQUIRE(top.start <= at);
        REQUIRE(at < top.end);
        std::string const id = e.at("id").text;
        std::string const end = processes.at(process_of.at(tid)) + "/" + threads.at(tid) + "/" +
                                top.name + "/" + std::to_string(top.step);
        if (phase == "s") {
          REQUIRE(begun.emplace(id, end).second);
        } else {
          REQUIRE(e.at("bp").text == "e");
          REQUIRE(begun.count(id) == 1);
          REQUIRE(ended.insert(id).second);
          arrows.emplace_back(begun.at(id), end);
        }
      } else {
        REQUIRE(phase == "C");
        int const value = static_cast<int>(e.at("args").at("in flight").number);
        REQUIRE(value >= 0);
        counters[processes.at(process_of.at(tid)) + "/" + e.at("name").text][at] = value;
      }
    }
    REQUIRE(begun.size() == ended.size());
    std::sort(arrows.begin(), arrows.end());
  }

  void metadata(json::Value const& e) {
    std::string const what = e.at("name").text;
    int const pid = static_cast<int>(e.at("pid").number);
    if (what == "process_name")
      REQUIRE(processes.emplace(pid, e.at("args").at("name").text).second);
    if (what != "thread_name") return;
    int const tid = static_cast<int>(e.at("tid").number);
    REQUIRE(
        threads.emplace(tid, e.at("args").at("name").text).second);  // no id twice, in no process
    process_of[tid] = pid;
  }

  [[nodiscard]] std::vector<Slice> of(std::string const& thread) const {
    std::vector<Slice> found;
    for (Slice const& slice : slices) {
      if (threads.at(slice.tid) == thread) found.push_back(slice);
    }
    return found;
  }
};

std::string cell(Action const& a) {
  std::string const letters[] = {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
  std::string text =
      std::to_string(a.stage) + letters[static_cast<int>(a.kind)] + std::to_string(a.microbatch);
  return a.slice == 0 ? text : text + "s" + std::to_string(a.slice);
}

/// The arrows that a timeline asks for, found by comparing every action with every other.
std::vector<std::pair<std::string, std::string>> expected_arrows(Timeline const& timeline,
                                                                 std::string const& process,
                                                                 int step) {
  std::vector<std::pair<std::string, std::string>> arrows;
  auto const place = [&](std::size_t rank, Action const& a) {
    return process + "/rank " + std::to_string(rank) + "/" + cell(a) + "/" + std::to_string(step);
  };
  for (std::size_t r = 0; r < timeline.row_begin.size(); ++r) {
    for (auto const& from : timeline.row(r)) {
      for (std::size_t q = 0; q < timeline.row_begin.size(); ++q) {
        for (auto const& to : timeline.row(q)) {
          Action const& a = from.action;
          Action const& b = to.action;
          bool const same = a.microbatch == b.microbatch && a.slice == b.slice && q != r;
          bool const forward =
              a.kind == Kind::forward && b.kind == Kind::forward && b.stage == a.stage + 1;
          auto const gradient = [](Kind k) {
            return k == Kind::backward || k == Kind::backward_input;
          };
          bool const backward = gradient(a.kind) && gradient(b.kind) && b.stage == a.stage - 1;
          if (same && (forward || backward)) arrows.emplace_back(place(r, a), place(q, b));
        }
      }
    }
  }
  std::sort(arrows.begin(), arrows.end());
  return arrows;
}

std::vector<Timeline> timelines() {
  return {sample::play(sample::gpipe(1, 1), 1, 1, 1),
          sample::play(sample::gpipe(4, 8), 1e-3, 1e-3, 1e-3),
          sample::play(sample::one_f_one_b(4, 8), 1.7e-3, 1e-3, 0.9e-3, 0.3),
          sample::play(sample::one_f_one_b(5, 3, true), 11e-9, 7e-9, 5e-9, 0.4),
          sample::play(sample::two_chunks(3, 4), 1e-6, 1e-6, 0),
          sample::play(sample::v_shape(3, 4), 1e-6, 1e-6, 0)};
}

/// A trace of one timeline, in a process of that name.
std::string named(Timeline const& timeline, std::string_view name) {
  report::TraceGroup const group{.name = name, .steps = {&timeline, 1}};
  return report::perfetto(std::span{&group, 1});
}

}  // namespace

TEST_CASE("report/trace: slices are nested and carry the timeline's times to the nanosecond",
          "[report]") {
  for (Timeline const& timeline : timelines()) {
    Viewer const viewer(report::perfetto(timeline));
    REQUIRE(viewer.nested == 0);
    for (std::size_t r = 0; r < timeline.row_begin.size(); ++r) {
      auto const slices = viewer.of("rank " + std::to_string(r));
      REQUIRE(slices.size() == timeline.row(r).size());
      for (std::size_t i = 0; i < slices.size(); ++i) {
        auto const& span = timeline.row(r)[i];
        CHECK(slices[i].name == cell(span.action));
        CHECK(slices[i].start == std::llround(span.start_s * 1e9));
        CHECK(slices[i].end == std::llround(span.end_s * 1e9));
      }
    }
  }
}

TEST_CASE("report/trace: there is an arrow for each message between ranks and no other",
          "[report]") {
  for (Timeline const& timeline : timelines()) {
    Viewer const viewer(named(timeline, "p"));
    CHECK(viewer.arrows == expected_arrows(timeline, "p", 0));
  }
}

TEST_CASE("report/trace: the counter rises to the published peak and comes back to zero",
          "[report]") {
  int const ranks = 4;
  int const microbatches = 8;
  for (bool const split : {false, true}) {
    Viewer const viewer(
        report::perfetto(sample::play(sample::one_f_one_b(ranks, microbatches, split), 1, 1, 1)));
    for (int r = 0; r < ranks; ++r) {
      auto const& track = viewer.counters.at("stagger/rank " + std::to_string(r));
      int peak = 0;
      for (auto const& [at, value] : track) peak = std::max(peak, value);
      CHECK(peak == std::min(microbatches, ranks - r));  // PipeDream-Flush: P - r on rank r
      CHECK(track.begin()->second == 0);
      CHECK(track.rbegin()->second == 0);
    }
  }
}

TEST_CASE("report/trace: forward-only timelines have no counter", "[report]") {
  Timeline const timeline =
      sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 1}}, {{{Kind::forward, 1, 0}, 1, 2}}});
  Viewer const viewer(report::perfetto(timeline));
  CHECK(viewer.counters.empty());
  CHECK(viewer.arrows.size() == 1);
}

TEST_CASE("report/trace: steps follow each other, each in a slice of its own", "[report]") {
  std::vector<Timeline> const steps(3,
                                    sample::play(sample::one_f_one_b(3, 4), 1e-3, 1e-3, 1e-3, 0.2));
  report::TraceGroup const group{.name = "run", .steps = steps, .first_step = 7};
  Viewer const viewer(report::perfetto(std::span{&group, 1}));
  std::vector<std::pair<std::string, std::string>> arrows;
  for (int step = 7; step < 10; ++step) {
    for (auto const& arrow : expected_arrows(steps[0], "run", step)) arrows.push_back(arrow);
  }
  std::sort(arrows.begin(), arrows.end());
  CHECK(viewer.arrows == arrows);
  for (int r = 0; r < 3; ++r) {
    std::int64_t end = 0;
    int step = 7;
    std::size_t inside = 0;
    for (Slice const& slice : viewer.of("rank " + std::to_string(r))) {
      if (slice.category == "step") {
        CHECK(slice.name == "step " + std::to_string(step++));
        CHECK(slice.start >= end);
        end = slice.end;
        inside = 0;
      } else {
        CHECK(slice.end <= end);  // inside its step
        CHECK(slice.step == step - 1);
        ++inside;
      }
    }
    CHECK(step == 10);
    CHECK(inside == 8);
  }
}

TEST_CASE("report/trace: ties, zero lengths and ticks of a coarse clock stay nested", "[report]") {
  Timeline timeline = sample::play(sample::one_f_one_b(4, 16, true), 3e-9, 2e-9, 0);
  double tick_s = 0;
  SECTION("all at once") { tick_s = 1; }
  SECTION("ticks of 20 ns") { tick_s = 20e-9; }
  SECTION("weight gradients that take no time") { tick_s = 0; }
  for (auto& span : timeline.spans) {
    if (tick_s == 0) continue;
    span.start_s = std::floor(span.start_s / tick_s) * tick_s;
    span.end_s = std::floor(span.end_s / tick_s) * tick_s;
  }
  Viewer const viewer(report::perfetto(timeline));
  for (std::size_t r = 0; r < timeline.row_begin.size(); ++r) {
    auto const slices = viewer.of("rank " + std::to_string(r));
    REQUIRE(slices.size() == timeline.row(r).size());
    for (std::size_t i = 1; i < slices.size(); ++i) CHECK(slices[i - 1].end <= slices[i].start);
    CHECK(viewer.counters.at("stagger/rank " + std::to_string(r)).rbegin()->second == 0);
  }
  auto const all = expected_arrows(timeline, "stagger", 0);
  CHECK(std::includes(all.begin(), all.end(), viewer.arrows.begin(), viewer.arrows.end()));
}

TEST_CASE("report/trace: an overlapped pair is one slice inside the other, arrows at both",
          "[report]") {
  Timeline const timeline = sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 1},
                                                  {{Kind::forward, 0, 1, 0, true}, 3, 5},
                                                  {{Kind::backward, 0, 0}, 3, 5},
                                                  {{Kind::backward, 0, 1}, 8, 9}},
                                                 {{{Kind::forward, 1, 0}, 1, 2},
                                                  {{Kind::backward, 1, 0}, 2, 3},
                                                  {{Kind::forward, 1, 1}, 5, 6},
                                                  {{Kind::backward, 1, 1}, 6, 8}}});
  Viewer const viewer(report::perfetto(timeline));
  CHECK(viewer.nested == 1);
  CHECK(viewer.arrows == expected_arrows(timeline, "stagger", 0));
  int peak = 0;
  for (auto const& [at, value] : viewer.counters.at("stagger/rank 0")) peak = std::max(peak, value);
  CHECK(peak == 2);  // in a pair the forward counts before the backward frees
}

TEST_CASE("report/trace: messages that overlap computation and each other get tracks of their own",
          "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 3), 1, 1, 1);
  for (int m = 0; m < 3; ++m) {
    sample::add_to_row(timeline, 0, {{Kind::send_forward, 0, m}, m + 1.0, m + 2.5});
  }
  Viewer const viewer(report::perfetto(timeline));
  CHECK(viewer.of("rank 0").size() == 6);
  CHECK(viewer.of("rank 0 messages").size() == 2);    // 1 to 2.5 and 3 to 4.5
  CHECK(viewer.of("rank 0 messages 2").size() == 1);  // 2 to 3.5
  CHECK(viewer.of("rank 0 messages")[0].name == "0SEND_F0");
}

TEST_CASE("report/trace: a reduction stands on its rank's track and sends no arrow", "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 1), 1, 1, 1);
  auto const arrows = Viewer(report::perfetto(timeline)).arrows;
  for (std::size_t r = 0; r < 2; ++r)
    sample::add_to_row(timeline, r, {{Kind::reduce_gradient, static_cast<int>(r), 0}, 9, 10});
  Viewer const viewer(report::perfetto(timeline));
  REQUIRE(viewer.of("rank 0").size() == 3);
  CHECK(viewer.of("rank 0")[2].name == "0REDUCE_GRAD");
  CHECK(viewer.of("rank 0 messages").empty());
  CHECK(viewer.arrows == arrows);
}

TEST_CASE("report/trace: predicted and measured stand side by side as two processes", "[report]") {
  Timeline const predicted = sample::play(sample::one_f_one_b(3, 4), 1, 1, 1);
  Timeline const measured = sample::play(sample::one_f_one_b(3, 4), 1, 1, 1, 0.1);
  Viewer const viewer(report::perfetto(predicted, measured));
  CHECK(viewer.processes == std::map<int, std::string>{{1, "predicted"}, {2, "measured"}});
  CHECK(viewer.threads.size() == 6);
  auto arrows = expected_arrows(predicted, "predicted", 0);
  for (auto const& arrow : expected_arrows(measured, "measured", 0)) arrows.push_back(arrow);
  std::sort(arrows.begin(), arrows.end());
  CHECK(viewer.arrows == arrows);
}

TEST_CASE(
    "report/trace: names of any bytes come back as they went in, or as a replacement character",
    "[report]") {
  Timeline const timeline = sample::play(sample::gpipe(1, 1), 1, 1, 1);
  std::string const tame = "a \"quoted\" \\ name\n\t\x01\x7f \xC3\xA4 \xF0\x9F\x98\x80";
  CHECK(Viewer(named(timeline, tame)).processes.at(1) == tame);
  std::string const wild = "x\xFFy\xC3(\xED\xA0\x80\xF4\x90\x80\x80\xC0\x80z\xE2\x82";
  std::string const seen = Viewer(named(timeline, wild)).processes.at(1);
  std::string const r = "\xEF\xBF\xBD";
  CHECK(seen == "x" + r + "y" + r + "(" + r + r + r + r + r + r + r + r + r + "z" + r + r);
}

TEST_CASE("report/trace: a slice says what its weights lacked where that is known", "[report]") {
  Timeline timeline =
      sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 1}, {{Kind::forward, 0, 1}, 1, 2}}});
  timeline.spans[1].lacked = 3;
  timeline.spans[1].lacked_of = 2;
  json::Value const root = json::parse(report::perfetto(timeline));
  std::map<std::string, std::string> lacked;
  for (auto const& event : root.at("traceEvents").items)
    if (event.has("cat") && event.at("cat").text == "compute")
      for (char const* const fact : {"lacked", "lacked_of_worker"})
        if (event.at("args").has(fact))
          lacked[event.at("name").text + " " + fact] = event.at("args").at(fact).text;
  REQUIRE(lacked ==
          std::map<std::string, std::string>{{"0F1 lacked", "3"}, {"0F1 lacked_of_worker", "2"}});
}

TEST_CASE("report/trace: both slices of an overlapped pair say what their weights lacked",
          "[report]") {
  Timeline timeline =
      sample::timeline_of({{{{Kind::forward, 0, 1}, 0, 1}, {{Kind::backward, 0, 0}, 0, 1}}});
  timeline.spans[0].action.overlaps_next = true;
  for (std::size_t half = 0; half < 2; ++half) {
    timeline.spans[half].lacked = static_cast<int>(half) + 1;
    timeline.spans[half].lacked_of = static_cast<std::uint16_t>(half + 3);
  }
  json::Value const root = json::parse(report::perfetto(timeline));
  std::map<std::string, std::string> lacked;
  for (auto const& event : root.at("traceEvents").items)
    if (event.has("cat") && event.at("cat").text == "compute")
      lacked[event.at("name").text] = event.at("args").at("lacked").text + " of " +
                                      event.at("args").at("lacked_of_worker").text;
  REQUIRE(lacked == std::map<std::string, std::string>{{"0F1", "1 of 3"}, {"0B0", "2 of 4"}});
}

TEST_CASE("report/trace: a slice says how long it exchanged with its group, if it did",
          "[report]") {
  Timeline timeline = sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 1},
                                            {{Kind::forward, 0, 1}, 1, 2},
                                            {{Kind::forward, 0, 2}, 2, 3},
                                            {{Kind::backward, 0, 0}, 3, 4}}});
  timeline.spans[1].exchange_s = 0.25;
  timeline.spans[2].exchange_s = 0.5;
  timeline.spans[2].action.overlaps_next = true;
  timeline.spans[3].exchange_s = 1.5e-9;
  json::Value const root = json::parse(report::perfetto(timeline));
  std::map<std::string, std::string> exchanged;
  for (auto const& event : root.at("traceEvents").items)
    if (event.has("cat") && event.at("cat").text == "compute")
      exchanged[event.at("name").text] =
          event.at("args").has("exchange_us") ? event.at("args").at("exchange_us").text : "";
  CHECK(exchanged ==
        std::map<std::string, std::string>{
            {"0F0", ""}, {"0F1", "250000.000"}, {"0F2", "500000.000"}, {"0B0", "0.002"}});
}

TEST_CASE("report/trace: impossible times are refused", "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 2), 1, 1, 1);
  auto const attempt = [&] {
    try {
      (void)report::perfetto(timeline);
    } catch (stagger::Error const& error) {
      CHECK(error.code() == stagger::Errc::bad_data);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(attempt().empty());
  Span& span = sample::span_at(timeline, 1, 2);
  span.end_s = span.start_s - 1;
  CHECK_THAT(attempt(), Catch::Contains("1B0 of rank 1"));
  span.end_s = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(attempt(), Catch::Contains("nan"));
  span.end_s = std::numeric_limits<double>::infinity();
  CHECK_THAT(attempt(), Catch::Contains("inf"));
  span = {span.action, 0, 1};
  span.exchange_s = std::numeric_limits<double>::quiet_NaN();
  CHECK(attempt() == "action 1B0 of rank 1 exchanges for nan s; give a finite time, in seconds");
}

TEST_CASE("report/trace: a trace of nothing is still a trace", "[report]") {
  CHECK(Viewer(report::perfetto(Timeline{})).slices.empty());
  CHECK(Viewer(report::perfetto(std::vector<Timeline>{})).processes.size() == 1);
}

}  // namespace trace_test
