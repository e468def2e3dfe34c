// SPDX-License-Identifier: Apache-2.0
// pipeline_faults WHAT: process 1 of several dies or hangs in a backward of a pipeline that spans
// them; with "sum" in WHAT, in the last backward of a stage that all of them hold, when the layers
// above have been added up or are just now. Every other one prints the error it got and how long it
// waited, and whether its parameters are those of the last whole step. With die-K it is killed when
// it is about to send its K-th message after its last backward: among these are those that say that
// it has finished. With shard-sum-K every process has the optimizer's state of a part of the
// stage, and process 1 is killed when it is about to send its K-th message from the first one on
// that hands over what it has updated. With "group" in WHAT the processes share two layers, and
// process 1 is at fault in a backward whose gradient the others wait for.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/partition/layer_split.hpp>

#include "barrier.hpp"
#include "trap_model.hpp"

namespace {

using namespace trap_model;

constexpr double deadline_s = 2;

/// Messages after which the process is killed; 0: never.
int messages_left = 0;
int die_at = 0;
bool hands_over = false;  // the messages count from there
std::optional<Barrier> barrier;

void (*fault(std::string const& what))() {
  if (what.find("die-") == 0) {
    die_at = std::stoi(what.substr(4));
    return [] { messages_left = die_at; };
  }
  if (what.find("shard-sum-") == 0) {
    die_at = std::stoi(what.substr(10));
    return [] { hands_over = true; };
  }
  if (what.find("kill") == 0) return [] { static_cast<void>(raise(SIGKILL)); };
  if (what.find("hang") == 0) return [] { barrier->wait(); };
  return [] { throw sg::Error(sg::Errc::bad_data, "a value is not finite"); };
}

/// Whether the part of the optimizer's state that is here has the same bits, and so all values, or
/// their part.
template <class Train, class Alone>
bool same_shards(Train& train, Alone& alone, int process, bool all_values) {
  auto const a = train.parameters();
  auto const b = alone.parameters();
  bool same = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t const third = a[i].value.size() / 3;
    auto const equal = [&](auto const& x, auto const& y) {
      std::size_t const first = static_cast<std::size_t>(process) * third;
      return std::ranges::equal(x.subspan(first, third), y.subspan(first, third));
    };
    same = same && (all_values ? std::ranges::equal(a[i].value, b[i].value)
                               : equal(a[i].value, b[i].value));
    for (std::size_t s = 0; s < 2; ++s) same = same && equal(a[i].state[s], b[i].state[s]);
  }
  return same;
}

/// A dense layer without bias, of which members have outputs.
struct Dense {
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  int layer;
  std::size_t in, out;
  sg::Parameter<> weight;  // [out][in]
  Dense(int number, std::size_t inputs_of, std::size_t outputs_of)
      : layer(number),
        in(inputs_of),
        out(outputs_of),
        weight("weight", std::vector<float>(in * out, 0.5F)) {}
  auto parameters() { return std::tie(weight); }
  [[nodiscard]] std::size_t inputs() const { return in; }
  [[nodiscard]] std::size_t outputs() const { return out; }
  [[nodiscard]] Dense part(int member, int members, sg::SplitBy) const {
    auto const mine = sg::features_of(member, members, out);
    Dense own = *this;
    own.out = mine.size();
    own.weight = weight.piece({.first = mine.first * in, .length = mine.size() * in});
    return own;
  }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    reach(context, layer, false);
    auto const w = context[weight];
    y.resize({x.extent(0), out});
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = 0;
      for (std::size_t c = 0; c < in; ++c) y[i] += w[i % out * in + c] * x[i / out * in + c];
    }
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                sg::NothingSaved&) const {
    reach(context, layer, true);
    auto const w = context[weight];
    dx.resize_like(x);
    dx.fill(0);
    for (std::size_t i = 0; i < dy.size(); ++i)
      for (std::size_t c = 0; c < in; ++c) {
        dx[i / out * in + c] += dy[i] * w[i % out * in + c];
        context.gradient(weight)[i % out * in + c] += dy[i] * x[i / out * in + c];
      }
  }
};

/// Takes steps; in the sixth process 1 is at fault.
/// @param own  a parameter of this process's
template <class Train, class Alone, class Batch>
int run(std::string const& what, int process, Train& train, Alone& alone, Batch const& batch,
        std::size_t own, Trap at) {
  bool const shards = what.find("shard") != std::string::npos;
  bool const pieces = what.find("group") != std::string::npos;
  for (int step = 0; step < 10; ++step) {
    at.spring = fault(what);
    if (step == 5 && process == 1) trap = at;
    auto const start = std::chrono::steady_clock::now();
    try {
      sg::run(train.step(batch));
    } catch (sg::Error const& e) {
      std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
      bool const same = shards || pieces ? same_shards(train, alone, process, shards)
                                         : train.parameters()[own].template values<float>()[0] ==
                                               alone.parameters()[own].template values<float>()[0];
      bool const whole = same && train.steps() == step;
      std::printf("FAULT rank %d after %.1f s, %s update at step %d: %s\n", process, waited.count(),
                  whole ? "no partial" : "A PARTIAL", step, e.what());
      std::fflush(stdout);
      if (what.find("hang") == 0 && process != 1) barrier->wait();
      return 0;
    }
    sg::run(alone.step(batch));
  }
  std::printf("rank %d saw no fault\n", process);
  return 1;
}

int run(std::string const& what) {
  sg::mpi::Session const session;
  int process = 0;
  int processes = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  barrier.emplace();
  sg::Options options{.deadline_s = deadline_s};
  bool const groups = what.find("group") != std::string::npos;
  if (what.find("sum") == std::string::npos && !groups) {
    auto const made = [&](auto device) {
      std::vector<Scale> layers;
      for (int l = 0; l < processes; ++l) layers.push_back(Scale{.layer = l});
      return sg::Pipeline{std::move(layers)}.with(Sum{}, device, options);
    };
    auto train = made(sg::mpi::Processes{});
    auto alone = made(sg::host::Threads{1});
    sg::Batch<Numbers, float> const batch{{{1}, {2}, {3}, {4}}, {1, 2, 3, 4}};
    return run(what, process, train, alone, batch, static_cast<std::size_t>(process),
               {.layer = 1, .microbatch = what.find("die-") == 0 ? 3 : 2, .backward = true});
  }
  options.replicas = {processes};
  if (groups) {
    options.clip_norm = 0.5;
    auto const made = [&](auto device) {
      return sg::Pipeline{sg::Sequential{Dense{0, 2, 6}, Dense{1, 6, 3}}}.with(
          sg::partition::LayerSplit{.group = 3, .threshold = 0}, device, options,
          sg::loss::MeanSquaredError<>{}, sg::optimizer::AdamW{});
    };
    auto train = made(sg::mpi::Processes{});
    auto alone = made(sg::host::Threads{1});
    sg::Batch<sg::Tensor<>, sg::Tensor<>> shared;
    for (int m = 0; m < 2; ++m) {
      shared.inputs.push_back(sg::Tensor<>({3, 2}));
      shared.inputs.back().fill(static_cast<float>(1 + m));
      shared.targets.push_back(sg::Tensor<>({3, 3}));
    }
    return run(what, process, train, alone, shared, 0,
               {.layer = 1, .microbatch = 1, .backward = true});
  }
  sg::Batch<Numbers, Numbers> const batch{{{1, 2, 3}, {4, 5, 6}}, {{1, 2, 3}, {4, 5, 6}}};
  bool const shards = what.find("shard") != std::string::npos;
  sg::collective::AllReduce<sg::collective::grouping::Layerwise> const policy{.shard_optimizer =
                                                                                  shards};
  if (shards) {
    options.clip_norm = 0.5;
    auto const made = [&](auto device) {
      return wide_stage().with(sg::partition::Cuts{}, RowSum{}, device, policy, options,
                               sg::optimizer::AdamW{});
    };
    auto train = made(sg::mpi::Processes{});
    auto alone = made(sg::host::Threads{1});
    return run(what, process, train, alone, batch, 0,
               {.layer = 0, .microbatch = 1, .backward = true});
  }
  auto const made = [&](auto device) {
    return one_stage().with(sg::partition::Cuts{}, RowSum{}, device, policy, options);
  };
  auto train = made(sg::mpi::Processes{});
  auto alone = made(sg::host::Threads{1});
  return run(what, process, train, alone, batch, 0,
             {.layer = 1, .microbatch = 1, .backward = true});
}

}  // namespace

// What MPI lets a program put before its functions.
extern "C" int MPI_Isend(void const* data, int count, MPI_Datatype type, int peer, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  bool const envelope = count == static_cast<int>(sizeof(sg::mpi::detail::Envelope));
  if (hands_over && envelope &&
      static_cast<sg::mpi::detail::Envelope const*>(data)->what ==
          sg::mpi::detail::notice_of_values) {
    hands_over = false;
    messages_left = die_at;
  }
  if (messages_left != 0 && --messages_left == 0) static_cast<void>(raise(SIGKILL));
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : ""); }
