// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The enqueueing of one iteration on the streams of GPUs, by one thread.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/facts.hpp>
#include <stagger/cuda/detail/group_sums.hpp>
#include <stagger/cuda/detail/messages.hpp>
#include <stagger/engine/backend.hpp>

namespace stagger::cuda::detail {

/// Enqueues a step, which devices carry out or a graph records.
class Enqueuer {
 protected:
  Enqueuer(stagger::detail::Machine& machine, GpusOptions const& options,
           std::shared_ptr<GpuSet> gpus)
      : machine_(machine),
        options_(options),
        gpus_(std::move(gpus)),
        streams_(machine, gpus_),
        messages_(streams_, options.wires),
        square_sums_(streams_),
        group_sums_(streams_, options.kernels),
        state_{machine} {}
  Enqueuer(Enqueuer const&) = delete;
  Enqueuer& operator=(Enqueuer const&) = delete;
  ~Enqueuer() = default;

  /// Begins to enqueue an iteration, or to record it.
  void begin_step(std::size_t slot) noexcept {
    slot_ = slot;
    decided_ = false;
    streams_.begin_step(slot);
    messages_.begin_step();
    group_sums_.begin_step();
    timed_ = machine_.options().record || machine_.measures();
  }

  void enqueue_iteration() {
    if (gpus_->processes() != nullptr) machine_.traffic.measure_step();
    begin_iteration();
    issue();
    launch_updates();
    join();
  }

  /// Joins the rows that replicas predict, on the GPU of the first rank, after the work of all
  /// GPUs.
  void join_outputs() {
    if (gpus_->processes() != nullptr)
      raise(Errc::bad_configuration,
            "the rows that replicas predict in several processes are not brought together; predict "
            "in a pipeline of one process, or without Options::replicas");
    std::size_t const own = streams_.gpu_of(0);
    streams_.use(own);
    auto const& stream = (*gpus_)[own].main_stream;
    for (std::size_t g = 0; g < gpus_->size(); ++g)
      if (g != own) streams_.wait(stream, streams_.end_of(slot_, g));
    AtPlace const here(streams_.place_of(0, stream));
    machine_.join_outputs();
    streams_.record(stream, streams_.end_of(slot_, own));
  }

  /// Enqueues the work that undoes a step that was not decided.
  void undo() {
    for (std::size_t r = 0; r < streams_.ranks(); ++r) {
      if (!streams_.own(r)) continue;
      streams_.use(streams_.gpu_of(r));
      AtPlace const here(streams_.place_of(r));
      state_.undo(r);
    }
  }

  /// The error of a call that CUDA has refused twice, on any GPU, in a step that was decided.
  [[nodiscard]] cudaError_t refused() const noexcept {
    for (std::size_t g = 0; g < gpus_->size(); ++g)
      if (auto const result = (*gpus_)[g].iteration.refused(); result != cudaSuccess) return result;
    return cudaSuccess;
  }

  [[nodiscard]] double* losses() const noexcept {
    return machine_.ranks().front().arguments->losses;
  }

  stagger::detail::Machine& machine_;
  GpusOptions options_;
  std::shared_ptr<GpuSet> gpus_;
  Streams streams_;
  Messages messages_;
  SquareSums square_sums_;
  GroupSums group_sums_;
  DistributedState state_;
  std::size_t slot_ = 0;  // of the iteration that is being enqueued, or was last
  bool timed_ = false;    // that iteration, by events
  bool decided_ = false;  // its updates are being enqueued

 private:
  struct Updating {
    stagger::detail::RankState* rank;  // null: of another process
    std::size_t number;
    Instruction const* in;
  };

  [[nodiscard]] bool clips() const noexcept {
    return machine_.program().training && machine_.options().clip_norm.has_value();
  }
  /// Whether processes must tell each other that they have reached the updates.
  [[nodiscard]] bool commits_together() const noexcept {
    return gpus_->processes() != nullptr && machine_.program().training &&
           machine_.program().flushes;
  }

  void begin_iteration() {
    updates_.clear();
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      streams_.use(g);
      auto& gpu = (*gpus_)[g];
      gpu.iteration.send(machine_, gpu.main_stream, slot_);
      if (timed_) gpu.timeline.begin(gpu.main_stream);
    }
    if (clips() || commits_together()) square_sums_.clear();
    streams_.fork();
  }

  void issue() {
    auto& ranks = machine_.ranks();
    for (Issue const& issue : messages_.routes().order()) {
      if (machine_.failed()) return;
      auto& rank = ranks[issue.rank];
      Instruction const& in = rank.begin[issue.index];
      if (in.op == Op::reduce && group_sums_.apart(in.cell)) add_up(issue.rank, in);
      if (streams_.own(issue.rank))
        execute(rank, issue.rank, in);
      else if (in.op == Op::update)
        updates_.push_back({nullptr, issue.rank, &in});
      messages_.give(issue, in);
    }
  }

  void add_up(std::size_t rank, Instruction const& in) {
    group_sums_.add_up(in, [&](std::size_t g, Stream const& stream, auto enqueue) {
      if (!timed_ || !group_sums_.measures(in)) return enqueue();
      streams_.use(g);
      (*gpus_)[g].timeline.action(rank, in, stream, [&] {
        enqueue();
        streams_.use(g);
      });
    });
  }

  void execute(stagger::detail::RankState& rank, std::size_t r, Instruction const& in) {
    messages_.await(rank, r, in);
    if (in.op == Op::update) return updates_.push_back({&rank, r, &in});
    if (in.op == Op::reduce && group_sums_.apart(in.cell)) return group_sums_.await(r, in);
    AtPlace const here(streams_.place_of(r));
    if (in.op == Op::finish) {
      messages_.await_gradients(r);
      return machine_.finish(r, (*gpus_)[streams_.gpu_of(r)].sums.data());
    }
    if (options_.ranges.begin != nullptr) [[unlikely]]
      return announce(rank, r, in);
    carry_out(rank, r, in);
  }
  void carry_out(stagger::detail::RankState& rank, std::size_t r, Instruction const& in) {
    if (!timed_ || !Timeline::shows(in)) return stagger::detail::carry_out(machine_, rank, in);
    (*gpus_)[streams_.gpu_of(r)].timeline.action(
        r, in, streams_.compute(r), [&] { stagger::detail::carry_out(machine_, rank, in); });
  }
  [[gnu::cold]] void announce(stagger::detail::RankState& rank, std::size_t r,
                              Instruction const& in) {
    options_.ranges.begin(stagger::detail::describe(in).c_str());
    struct End {
      void (*end)();
      ~End() { end(); }
    } const range{options_.ranges.end};
    carry_out(rank, r, in);
  }

  /// Enqueues the updates after all calls that CUDA and NCCL may refuse. On the devices, too, they
  /// follow the work of all ranks of all processes.
  void launch_updates() {
    if (machine_.failed()) return;
    if (clips() || commits_together()) square_sums_.share();
    if (clips()) scale_gradients();
    check(refused(), "change parameters");  // without a flush
    if (updates_.empty() || !machine_.commit()) return;
    decided_ = true;
    streams_.insist();
    for (auto const& [rank, r, in] : updates_) {
      if (rank != nullptr) {
        streams_.use(streams_.gpu_of(r));
        messages_.await_handing_in(r);
        AtPlace const here(streams_.place_of(r));
        machine_.execute_end(*rank, *in);
        group_sums_.update(r);
      }
      messages_.send_values(r);
    }
  }

  /// Each rank that updates finds the scale for itself.
  void scale_gradients() {
    for (auto const& [rank, r, in] : updates_) {
      if (rank == nullptr) continue;
      auto& gpu = (*gpus_)[streams_.gpu_of(r)];
      streams_.use(streams_.gpu_of(r));
      check(options_.kernels->scale(gpu.sums.data(), machine_.model.parameter_count(),
                                    *machine_.options().clip_norm, gpu.iteration.place(r).scale,
                                    streams_.compute(r).get()),
            "find the scale of the gradients");
    }
  }

  void join() {
    if (machine_.failed()) return;
    streams_.join();
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      auto& gpu = (*gpus_)[g];
      streams_.use(g);
      if (gpus_->processes() != nullptr && losses() != nullptr)
        gpus_->processes()->all_reduce(
            std::span(gpu.iteration.place(0).losses, gpu.iteration.loss_count()));
      streams_.ask([&] { return gpu.iteration.fetch(gpu.main_stream, slot_); },
                   "fetch the loss of a step");
    }
    check(refused(), "change parameters of a step that was decided");
  }

  std::vector<Updating> updates_;  // of this iteration, in the order of issue
};

}  // namespace stagger::cuda::detail
