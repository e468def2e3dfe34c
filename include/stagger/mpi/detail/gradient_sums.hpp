// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Gradients of replicas in several processes: their sums by MPI_Iallreduce, group after
///         group while the last backward still runs, and the choice of one grouping by all
///         processes, from times that they measure together.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, section V: one worker measures and decides, the others
///         are told.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/line_fit.hpp>
#include <stagger/core/add_up.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/mpi/detail/pieces.hpp>
#include <stagger/mpi/detail/placement.hpp>

namespace stagger::mpi::detail {

/// Each stage with several holders has a communicator of MPI, on which every holder makes one call
/// for each group: the gradients are copied into one piece of memory of each element type, which
/// MPI works on, and come back as sums. Such a call cannot be cancelled: after a failed step the
/// memory is left to MPI, and all processes make new communicators.
class LibrarySums {
 public:
  using RankState = stagger::detail::RankState;

  /// All processes call it with the program that they are about to run.
  /// @throws Error bad_configuration if two holders of a stage are in one process
  [[gnu::cold]] void load(HeldParameters const& held, Placement const& placement, Exchange& world,
                          double seconds) {
    constexpr char const* making = "prepare sums of gradients by MPI";
    if (held.machine.run.grouping.by != collective::By::library) return;
    auto const& program = held.program();
    double lost = lost_ ? 1 : 0;
    world.maximum({&lost, 1}, making, seconds);
    if (lost != 0) stages_.clear();
    lost_ = false;
    pending_.clear();
    stages_.resize(static_cast<unsigned>(program.stages));
    for (int s = 0; s < program.stages; ++s) {
      auto members = placement.holders(program, s);
      std::size_t holders = 0;
      for (Cell const& cell : program.cells) holders += cell.stage == s ? 1 : 0;
      if (holders != members.size())
        raise(Errc::bad_configuration, "stage ", s, " is held by ", holders, " ranks in ",
              members.size(),
              " processes, and MPI adds up one of each; start a process for each replica, or use "
              "collective::By::slices");
      Stage& stage = stages_[s];
      if (stage.members == members) continue;
      bool const joins = std::find(members.begin(), members.end(), world.rank()) != members.end();
      stage.processes = members.size() > 1 ? world.part(joins, making, seconds) : MPI_COMM_NULL;
      stage.members = std::move(members);
    }
  }

  [[nodiscard]] bool uses(int stage) const noexcept {
    return static_cast<unsigned>(stage) < stages_.size() &&
           stages_[stage].processes != MPI_COMM_NULL;
  }

  /// Begins this process's part of the sum of a `reduce`.
  /// @param now_s  since the step began
  void begin(HeldParameters const& held, RankState& rank, Instruction const& in, double now_s) {
    Sum& sum = take();
    sum.rank = &rank;
    sum.in = &in;
    sum.start_s = now_s;
    for (auto& numbers : sum.numbers) numbers.clear();
    held.each_gradient(in, [&](ElementType type, std::byte* own, std::byte*, std::size_t bytes) {
      auto& numbers = sum.numbers[type == ElementType::f32 ? 0 : 1];
      numbers.insert(numbers.end(), own, own + bytes);
    });
    for (std::size_t t = 0; t < 2; ++t) start(sum, t, stages_[in.stage].processes);
    held.machine.traffic.add(held.program().cells[in.cell].rank, TrafficKind::gradient_sums,
                             {sum.requests.size(), sum.numbers[0].size() + sum.numbers[1].size()});
  }

  /// Checks the sums that were begun.
  /// @param done  called with the rank and the instruction of each sum that is done, and its start
  ///              time
  /// @return whether any has
  template <class Done> bool poll(HeldParameters const& held, Done done) {
    bool moved = false;
    for (std::size_t i = 0; i < pending_.size();) {
      int ended = 0;
      Sum& sum = pending_[i];
      check(MPI_Testall(count_for(sum.requests.size()), sum.requests.data(), &ended,
                        MPI_STATUSES_IGNORE),
            "MPI_Testall", "a sum of gradients");
      if (ended == 0) {
        ++i;
        continue;
      }
      moved = true;
      std::array<std::size_t, 2> at{};
      held.each_gradient(*sum.in,
                         [&](ElementType type, std::byte*, std::byte* to, std::size_t bytes) {
                           std::size_t const t = type == ElementType::f32 ? 0 : 1;
                           std::memcpy(to, sum.numbers[t].data() + at[t], bytes);
                           at[t] += bytes;
                         });
      spare_.push_back(std::move(pending_[i]));
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      done(*spare_.back().rank, *spare_.back().in, spare_.back().start_s);
    }
    return moved;
  }

  /// After a step that failed.
  void give_up() noexcept {
    if (pending_.empty()) return;
    lost_ = true;
    new std::vector<Sum>(std::exchange(pending_, {}));  // MPI may still use it
  }

  /// The unfinished sums as text, for the message of a stall.
  [[nodiscard]] std::string describe_pending() const {
    std::string pending;
    for (Sum const& sum : pending_) {
      pending += text("; MPI_Iallreduce of gradient group ", sum.in->group, " of stage ",
                      sum.in->stage, " is not done, which needs the processes");
      for (int const p : stages_[sum.in->stage].members) pending += text(" ", p);
    }
    return pending;
  }

  /// Adds up this many floats, outside of steps, together with the other holders of the stage.
  void measure(int stage, std::size_t size, double seconds) {
    Sum& sum = take();
    sum.numbers[0].assign(size * sizeof(float), std::byte{});
    sum.numbers[1].clear();
    start(sum, 0, stages_[stage].processes);
    int code = MPI_SUCCESS;
    bool const came = wait_for(sum.requests, code, seconds, std::chrono::milliseconds(1));
    if (!came || code != MPI_SUCCESS) {
      peers_may_be_lost = true;
      give_up();
    } else {
      spare_.push_back(std::move(pending_.back()));
      pending_.pop_back();
    }
    check(code, "MPI_Testall", "a sum that was to be measured");
    if (!came)
      raise(Errc::deadline, "MPI_Iallreduce was not done after ", seconds,
            " s; check that each process that holds stage ", stage, " is still running");
  }

 private:
  struct Stage {
    List<int> members{};
    MPI_Comm processes = MPI_COMM_NULL;
  };
  struct Sum {
    RankState* rank = nullptr;
    Instruction const* in = nullptr;
    double start_s = 0;
    std::array<std::vector<std::byte>, 2> numbers{};  // float, double
    std::vector<MPI_Request> requests{};
  };

  /// Memory for a sum, which counts as unfinished from now on.
  Sum& take() {
    if (spare_.empty()) spare_.emplace_back();
    pending_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    pending_.back().requests.clear();
    return pending_.back();
  }
  static void start(Sum& sum, std::size_t t, MPI_Comm processes) {
    std::size_t const each = t == 0 ? sizeof(float) : sizeof(double);
    std::size_t const count = sum.numbers[t].size() / each;
    each_piece(count, most_in_a_call, [&](std::size_t at, std::size_t size) {
      sum.requests.push_back(MPI_REQUEST_NULL);
      check(
          MPI_Iallreduce(MPI_IN_PLACE, sum.numbers[t].data() + at * each, count_for(size),
                         t == 0 ? MPI_FLOAT : MPI_DOUBLE, MPI_SUM, processes, &sum.requests.back()),
          "MPI_Iallreduce", "a sum of gradients");
    });
  }

  List<Stage> stages_{};
  std::vector<Sum> pending_{}, spare_{};
  bool lost_ = false;  // MPI kept something
};

/// A sum of the size of a group among some processes, computed as in a step: each adds up a slice
/// and sends it to the others. These processes call it together.
/// @param members  processes, in order
inline void sum_in_slices(Exchange& world, List<int> const& members, std::size_t size,
                          double seconds) {
  constexpr char const* measuring = "measure what sums of gradients take";
  std::size_t const each = (size + members.size() - 1) / members.size();
  std::size_t const bytes = each * sizeof(float);
  std::byte* const own = world.memory(2 * members.size() * bytes);
  std::byte* const received = own + members.size() * bytes;
  std::vector<Exchange::Message> messages;
  std::vector<float const*> more;
  std::size_t self = 0;
  while (members[self] != world.rank()) ++self;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (m == self) continue;
    messages.push_back({members[m], true, own + m * bytes, bytes});
    messages.push_back({members[m], false, received + m * bytes, bytes});
    more.push_back(reinterpret_cast<float const*>(received + m * bytes));
  }
  world.swap(messages, measuring, seconds);
  auto* const sum = reinterpret_cast<float*>(own + self * bytes);
  stagger::detail::add_up(sum, more.data(), more.size(), each);
  messages.clear();
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (m == self) continue;
    messages.push_back({members[m], true, own + self * bytes, bytes});
    messages.push_back({members[m], false, own + m * bytes, bytes});
  }
  world.swap(messages, measuring, seconds);
}

/// The cost line of a sum among some processes, fitted to medians of five runs for each size, after
/// two warm-up runs.
/// @param sum         (size) adds up this many floats, together with the others
/// @param most_bytes  of the largest; at least 4 KiB, at most 4 MiB count
template <class Sum>
[[nodiscard]] collective::CostLine measured_line(std::uint64_t most_bytes, Sum sum) {
  constexpr std::size_t least = 1 << 10;
  auto const most = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(most_bytes, 4 * least, std::uint64_t{4} << 20));
  std::vector<collective::Sample> samples;
  for (std::size_t bytes = least; bytes <= most; bytes *= 4) {
    std::vector<double> took_s;
    for (int i = -2; i < 5; ++i) {
      auto const start = std::chrono::steady_clock::now();
      sum(bytes / sizeof(float));
      std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
      if (i >= 0) took_s.push_back(took.count());
    }
    std::sort(took_s.begin(), took_s.end());
    samples.push_back({bytes, took_s[took_s.size() / 2]});
  }
  return collective::line_through(samples);
}

/// One process's part in the choice, outside of steps. All processes make the same calls.
struct GroupingAgreement {
  Exchange& world;
  LibrarySums& sums;
  stagger::detail::Machine& machine;
  Placement const& placement;

  /// The functions that the machine calls, for as long as this object is there.
  [[nodiscard]] stagger::detail::GroupingPeers peers() {
    return {this,
            [](void* self, double* backward_s, double* sum_s) {
              static_cast<GroupingAgreement*>(self)->share(backward_s, sum_s);
            },
            [](void* self, void (*ask)(stagger::detail::Machine&), List<GradientGroup>& groups) {
              static_cast<GroupingAgreement*>(self)->choose(ask, groups);
            }};
  }

  /// See stagger::detail::GroupingPeers: the medians of the processes that measured, and the times
  /// of sums over the links between the processes.
  void share(double* backward_s, double* sum_s) {
    constexpr char const* telling = "tell each other what they have measured";
    auto const& groups = machine.program().groups;
    auto const& model = machine.model;
    double const deadline_s = machine.options().deadline_s;
    for (std::size_t first = 0, end = 0; first < groups.size(); first = end) {
      int const stage = groups[first].stage;
      while (end < groups.size() && groups[end].stage == stage) ++end;
      auto const members = placement.holders(machine.program(), stage);
      if (members.size() < 2) continue;
      bool const here = std::find(members.begin(), members.end(), world.rank()) != members.end();
      collective::CostLine line;
      if (here)
        line = measured_line(model.bytes_of(model.layers_of(stage)), [&](std::size_t size) {
          if (sums.uses(stage))
            sums.measure(stage, size, deadline_s);
          else
            sum_in_slices(world, members, size, deadline_s);
        });
      for (std::size_t g = first; g < end; ++g)
        if (!here || sum_s[g] > 0)
          sum_s[g] = line.seconds(model.bytes_of(model.layers_of(groups[g])));
    }
    world.maximum({backward_s, groups.size()}, telling, deadline_s);
    world.maximum({sum_s, groups.size()}, telling, deadline_s);
  }

  /// Process 0 chooses for all, since processes that chose independently might disagree.
  void choose(void (*ask)(stagger::detail::Machine&), List<GradientGroup>& groups) {
    constexpr char const* hearing = "hear how gradients are grouped";
    struct Answer {
      std::uint64_t count = 0;
      char refusal[240] = {};
    } answer;
    double const deadline_s = machine.options().deadline_s;
    std::exception_ptr failure;
    if (world.rank() == 0) {
      try {
        ask(machine);
        answer.count = groups.size();
      } catch (...) {
        failure = std::current_exception();
        report_of(failure).message.copy(answer.refusal, sizeof(answer.refusal) - 1);
      }
    }
    world.broadcast(std::as_writable_bytes(std::span(&answer, 1)), 0, hearing, deadline_s);
    if (failure) std::rethrow_exception(failure);
    if (answer.refusal[0] != 0)
      raise(Errc::peer_failed,
            "process 0 could not group the gradients: ", static_cast<char const*>(answer.refusal));
    groups.resize(answer.count);
    world.broadcast(std::as_writable_bytes(std::span(groups.data(), groups.size())), 0, hearing,
                    deadline_s);
  }
};

}  // namespace stagger::mpi::detail
