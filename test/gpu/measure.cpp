// SPDX-License-Identifier: Apache-2.0
// What the engine costs on a GPU, each figure beside hand-written CUDA calls that do the same in
// the same run. Prints a table; a figure that misses what is promised is marked, and is no failure.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <ctime>

#include <stagger/cuda/gpus.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/train/pipeline.hpp>

#include "kernels.hpp"
#include "skip.hpp"
#include "stages.hpp"
#include "table.hpp"

namespace sg = stagger;

namespace {

constexpr int stages = 8;
constexpr int microbatches = 32;
constexpr int graph_microbatches = 50;  // 800 kernels
constexpr int rounds = 31;

/// One empty kernel in every action.
struct Empty {
  using Input = float;
  using Output = float;
  void forward(sg::Context&, float const&, float&, sg::NothingSaved&) {
    gpu_kernels::empty(sg::cuda::stream());
  }
  void backward_input(sg::Context&, float const&, float const&, float&, sg::NothingSaved&) {
    gpu_kernels::empty(sg::cuda::stream());
  }
};
struct NoLoss {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const&, float const&) const { return 0; }
  double value_and_gradient(sg::Context&, float const&, float const&, double, float&) const {
    return 0;
  }
};

/// A kernel that writes down when it runs.
struct Stamp {
  using Input = std::uint64_t*;
  using Output = std::uint64_t*;
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) {
    gpu_kernels::stamp(x, sg::cuda::stream());
    y = x;
  }
  void backward_input(sg::Context&, Input const&, Output const&, Input&, sg::NothingSaved&) {}
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_s() {
  std::timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

using table::median;
using table::number;
using table::row;

/// The CUDA calls of one iteration, written down once and made again by a loop that knows nothing
/// of pipelines.
class ByHand {
 public:
  explicit ByHand(sg::Program const& program) {
    streams_.resize(program.ranks.size());
    std::vector<std::size_t> first{0};
    std::vector<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.signal_count; ++g) ++gives[in.signal[g]];
    for (auto const count : gives) first.push_back(first.back() + count);
    events_.resize(first.back() + program.ranks.size());
    std::vector<std::uint32_t> issued(gives.size());
    std::vector<std::size_t> at(program.ranks.size());
    std::vector<std::size_t> wait(program.ranks.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < program.ranks.size(); ++r) {
        auto const& code = program.ranks[r].code;
        auto const ready = [&](sg::Instruction const& in) {
          for (std::size_t w = wait[r]; w < wait[r] + in.waits; ++w)
            if (issued[program.ranks[r].waits[w].signal] < program.ranks[r].waits[w].count)
              return false;
          return true;
        };
        for (; at[r] < code.size() && ready(code[at[r]]); ++at[r], moved = true) {
          auto const& in = code[at[r]];
          for (unsigned w = 0; w < in.waits; ++w, ++wait[r]) {
            auto const& need = program.ranks[r].waits[wait[r]];
            calls_.push_back({Call::wait, r, first[need.signal] + need.count - 1});
          }
          if (in.op <= sg::Op::recompute) calls_.push_back({Call::kernel, r, 0});
          for (unsigned g = 0; g < in.signal_count; ++g)
            calls_.push_back({Call::record, r, first[in.signal[g]] + issued[in.signal[g]]++});
        }
      }
    }
    join_ = first.back();
  }

  void issue() {
    for (auto const& call : calls_) {
      auto const stream = streams_[call.stream].get();
      switch (call.kind) {
        case Call::wait:
          cudaStreamWaitEvent(stream, events_[call.event].get(), 0);
          break;
        case Call::kernel:
          gpu_kernels::empty(stream);
          break;
        case Call::record:
          cudaEventRecord(events_[call.event].get(), stream);
          break;
      }
    }
  }
  void fork_and_join() {
    streams_[0].record(events_[join_]);
    for (std::size_t r = 1; r < streams_.size(); ++r) streams_[r].wait(events_[join_]);
    issue();
    for (std::size_t r = 1; r < streams_.size(); ++r) {
      streams_[r].record(events_[join_ + r]);
      streams_[0].wait(events_[join_ + r]);
    }
  }
  void drain() const {
    for (auto const& stream : streams_)
      while (!stream.idle()) {
      }
  }
  [[nodiscard]] sg::cuda::Stream const& origin() const { return streams_[0]; }

 private:
  struct Call {
    enum Kind { wait, kernel, record } kind;
    std::size_t stream;
    std::size_t event;
  };
  std::vector<sg::cuda::Stream> streams_;
  std::vector<sg::cuda::Event> events_;
  std::vector<Call> calls_;
  std::size_t join_ = 0;
};

void enqueueing() {
  auto train =
      sg::Pipeline{std::vector<Empty>(stages)}.with(sg::cuda::Gpus{.devices = {0}}, NoLoss{});
  sg::Batch<float, float> batch;
  batch.inputs.resize(microbatches);
  batch.targets.resize(microbatches);
  ByHand hand(train.program(microbatches));
  std::vector<double> engine_s;
  std::vector<double> hand_s;
  for (int i = 0; i < rounds + 5; ++i) {
    double const start = now_s();
    sg::run(train.step(batch));
    double const middle = now_s();
    hand.issue();
    hand.drain();
    if (i >= 5) {
      engine_s.push_back(middle - start);
      hand_s.push_back(now_s() - middle);
    }
  }
  double const actions = 2.0 * stages * microbatches;
  double const more_ns = (median(engine_s) - median(hand_s)) / actions * 1e9;
  row("one action, empty kernels, 8 stages, M=32: engine beyond hand-written calls",
      number(more_ns, "ns") + "; " + number(median(engine_s) / actions * 1e9, "ns") + " against " +
          number(median(hand_s) / actions * 1e9, "ns"),
      "at most 150 ns", more_ns <= 150);

  ByHand more(train.program(graph_microbatches));
  sg::cuda::Graph graph;
  sg::cuda::GraphCounts counts;
  graph.capture(more.origin(), counts, [&] { more.fork_and_join(); });
  std::vector<double> enqueue_s;
  std::vector<double> replay_s;
  for (int i = 0; i < rounds + 5; ++i) {
    double const start = cpu_s();
    more.issue();
    double const enqueued = cpu_s();
    more.drain();
    double const again = cpu_s();
    graph.replay(more.origin(), counts);
    double const replayed = cpu_s();
    more.drain();
    if (i >= 5) {
      enqueue_s.push_back(enqueued - start);
      replay_s.push_back(replayed - again);
    }
  }
  double const ratio = median(enqueue_s) / median(replay_s);
  row("CPU time of an iteration, " + std::to_string(counts.nodes) +
          " nodes: enqueueing over replaying a graph",
      number(ratio, "times") + "; " + number(median(enqueue_s) * 1e6, "us") + " and " +
          number(median(replay_s) * 1e6, "us"),
      "at least 10 times", ratio >= 10);
}

/// Of the gaps, the mean of the middle half: the device's clock may tick once in a microsecond.
double usual_gap_us(std::vector<std::uint64_t> const& stamps) {
  std::vector<double> gaps;
  for (std::size_t k = 1; k < stamps.size() / 2; ++k)
    gaps.push_back(static_cast<double>(stamps[2 * k] - stamps[2 * k - 1]) * 1e-3);
  std::sort(gaps.begin(), gaps.end());
  std::size_t const first = gaps.size() / 4;
  std::size_t const last = gaps.size() - first;
  double sum = 0;
  for (std::size_t k = first; k < last; ++k) sum += gaps[k];
  return sum / static_cast<double>(last - first);
}

void gaps() {
  constexpr std::size_t kernels = 256;
  auto run = sg::Pipeline{Stamp{}}.with(sg::cuda::Gpus{.devices = {0}});
  sg::cuda::Tensor<std::uint64_t> stamps({2 * kernels});
  std::vector<std::uint64_t> host(2 * kernels);
  std::vector<std::uint64_t*> x(kernels);
  std::vector<std::uint64_t*> y(kernels);
  for (std::size_t k = 0; k < kernels; ++k) x[k] = stamps.data() + 2 * k;
  auto const fetch = [&] {
    stamps.download(host);
    sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
    return usual_gap_us(host);
  };
  sg::cuda::Stream const raw;
  std::vector<double> engine_us;
  std::vector<double> raw_us;
  for (int i = 0; i < rounds; ++i) {
    sg::run(run.predict(x, y));
    engine_us.push_back(fetch());
    for (auto* const place : x) gpu_kernels::stamp(place, raw.get());
    while (!raw.idle()) {
    }
    raw_us.push_back(fetch());
  }
  double const more_us = median(engine_us) - median(raw_us);
  row("gap between dependent kernels of one stream: engine beyond raw launches",
      number(more_us, "us") + "; " + number(median(engine_us), "us") + " against " +
          number(median(raw_us), "us"),
      "at most 1 us", more_us <= 1);
}

double wall_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Two stages, on two GPUs and on one: what a message between GPUs takes beyond a slot that both
/// share.
void between_gpus() {
  constexpr std::size_t size = 4U << 20U;
  constexpr std::size_t messages = 32;
  std::string const what =
      "a message of 16 MiB from GPU to GPU, M=32: time of a step beyond one GPU";
  if (sg::cuda::device_count() < 2) return row(what, "one GPU only: not measured", "none", true);
  auto const x = inputs(messages, size);
  std::vector<sg::cuda::Tensor<>> one_y(messages);
  std::vector<sg::cuda::Tensor<>> two_y(messages);
  auto one = sg::Pipeline{AddOne{}, AddOne{}}.with(sg::cuda::Gpus{.devices = {0}});
  auto two = sg::Pipeline{AddOne{}, AddOne{}}.with(sg::cuda::Gpus{.devices = {0, 1}});
  std::vector<double> one_s;
  std::vector<double> two_s;
  for (int i = 0; i < rounds + 3; ++i) {
    double const start = wall_s();
    sg::run(one.predict(x, one_y));
    double const between = wall_s();
    sg::run(two.predict(x, two_y));
    double const end = wall_s();
    if (i < 3) continue;
    one_s.push_back(between - start);
    two_s.push_back(end - between);
  }
  double const bytes = static_cast<double>(messages * size * sizeof(float));
  row(what,
      number((median(two_s) - median(one_s)) / messages * 1e6, "us each") + "; " +
          number(bytes / median(two_s) * 1e-9, "GB/s") + " over the whole step",
      "-", true);
}

}  // namespace

int main() {
  if (no_gpu()) return 0;
  try {
    auto const device = sg::cuda::select_device(0);
    std::printf("%s, %d multiprocessors, %.0f GiB; medians of %d\n\n%s", device.name.c_str(),
                device.multiprocessors, static_cast<double>(device.total_bytes >> 30U), rounds,
                table::head);
    enqueueing();
    gaps();
    between_gpus();
  } catch (sg::Error const& error) {
    std::printf("measure: %s\n", error.what());
    return 1;
  }
  return 0;
}
