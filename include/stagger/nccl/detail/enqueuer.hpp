// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One iteration, put onto the streams of several GPUs from one thread.

#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/timeline.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/nccl/detail/group_sums.hpp>
#include <stagger/nccl/detail/links.hpp>

namespace stagger::nccl::detail {

/// What a back end over GPUs does in a step, whether devices carry it out or a graph records it.
class Enqueuer {
 protected:
  Enqueuer(stagger::detail::Machine& machine, cuda::ParameterKernels const* kernels,
           std::shared_ptr<GpuSet> gpu_set, Wires const& wires)
      : machine_(machine),
        kernels_(kernels),
        gpu_set_(std::move(gpu_set)),
        links_(machine, wires, gpu_set_),
        sums_(machine, kernels, *gpu_set_, links_) {}
  Enqueuer(Enqueuer const&) = delete;
  Enqueuer& operator=(Enqueuer const&) = delete;
  ~Enqueuer() = default;

  void enqueue_iteration() {
    begin_iteration();
    issue();
    launch_updates();
    join();
  }

  [[nodiscard]] bool clips() const noexcept {
    return machine_.program().training && machine_.options().clip_norm.has_value();
  }
  [[nodiscard]] bool commits() const noexcept {
    return machine_.program().training && machine_.program().flushes;
  }
  [[nodiscard]] double* losses() const noexcept {
    return machine_.ranks().front().arguments->losses;
  }

  void begin_iteration() {
    updates_.clear();
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) {
      links_.use(g);
      auto& gpu = (*gpu_set_)[g];
      gpu.iteration.send(machine_, gpu.home, turn_);
      cuda::check(
          cudaMemsetAsync(gpu.sums.data(), 0, gpu.sums.size() * sizeof(double), gpu.home.get()),
          "clear sums of squares");
      if (timed_) gpu.timeline.begin(gpu.home);
      links_.fork(g);
    }
  }

  void issue() {
    auto& ranks = machine_.ranks();
    for (auto const& turn : links_.routes().turns()) {
      if (machine_.failed()) return;
      Instruction const& in = ranks[turn.rank].begin[turn.index];
      if (in.op == Op::reduce && sums_.apart(in.cell)) add_up(ranks[turn.rank], in);
      if (links_.own(turn.rank))
        execute(ranks[turn.rank], in);
      else if (in.op == Op::update)
        updates_.push_back({nullptr, turn.rank, &in});
      links_.give(turn.rank, turn.index, in);
    }
  }

  void add_up(stagger::detail::RankState& rank, Instruction const& in) {
    sums_.add_up(in, [&](std::size_t g, cuda::Stream const& stream, auto enqueue) {
      if (!timed_ || !sums_.measures(in)) return enqueue();
      links_.use(g);
      (*gpu_set_)[g].timeline.action(rank, in, stream, [&] {
        enqueue();
        links_.use(g);
      });
    });
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    auto const r = static_cast<std::size_t>(rank.number);
    links_.await(rank, in);
    if (in.op == Op::update) return updates_.push_back({&rank, r, &in});
    auto& gpu = (*gpu_set_)[links_.gpu_of(r)];
    if (in.op == Op::reduce && sums_.apart(in.cell)) return sums_.await(r, in);
    cuda::detail::AtPlace const here(links_.place_of(r));
    if (in.op == Op::finish) {
      links_.await_gradients(r);
      return links_.distributed_state().finish(r, clips() ? gpu.sums.data() : nullptr);
    }
    auto const& stream = links_.compute(r);
    if (!timed_ || !cuda::detail::Timeline::shows(in))
      return stagger::detail::carry_out(machine_, rank, in);
    gpu.timeline.action(rank, in, stream, [&] { stagger::detail::carry_out(machine_, rank, in); });
  }

  /// Whatever CUDA and NCCL may refuse comes before the updates; and on the devices, so do all
  /// ranks of all processes.
  void launch_updates() {
    if (machine_.failed()) return;
    if (clips() || (commits() && !gpu_set_->alone())) {
      // Every sum is of one GPU and 0 on the others, so that their order does not matter.
      links_.sum_up([](Gpu& gpu) { return std::span(gpu.sums.data(), gpu.sums.size()); });
      if (clips()) scale_gradients();
    }
    for (std::size_t g = 0; g < gpu_set_->size(); ++g)
      cuda::check((*gpu_set_)[g].iteration.refused(), "change parameters");  // without a flush
    if (updates_.empty() || !machine_.commit()) return;
    decided_ = true;
    for (auto const& [rank, r, in] : updates_) {
      if (rank != nullptr) {
        links_.use(links_.gpu_of(r));
        links_.await_handing_in(r);  // they become zero
        cuda::detail::AtPlace const here(links_.place_of(r));
        machine_.execute_end(*rank, *in);
        sums_.update(r);
      }
      links_.send_values(r);
    }
  }

  void scale_gradients() {
    for (std::size_t r = 0; r < links_.ranks(); ++r) {
      if (!links_.own(r)) continue;
      links_.use(links_.gpu_of(r));
      auto& gpu = (*gpu_set_)[links_.gpu_of(r)];
      cuda::check(kernels_->scale(gpu.sums.data(), machine_.parameter_count(),
                                  *machine_.options().clip_norm, gpu.iteration.place(r).scale,
                                  links_.compute(r).get()),
                  "find the scale of the gradients");
    }
  }

  void join() {
    if (machine_.failed()) return;
    if (!gpu_set_->alone() && losses() != nullptr)
      links_.sum_up([&](Gpu& gpu) {
        return std::span(gpu.iteration.place(0).losses, gpu.iteration.loss_count());
      });
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) {
      auto& gpu = (*gpu_set_)[g];
      links_.join(g);
      gpu.iteration.fetch(gpu.home, turn_);
      cuda::check(gpu.iteration.refused(), "change parameters of a step that was decided");
    }
  }
  /// On the GPU of the first rank, behind all others.
  void join_outputs() {
    if (!gpu_set_->alone())
      raise(Errc::bad_configuration,
            "the rows that replicas predict in several processes are not brought together; predict "
            "in a pipeline of one process, or without Options::replicas");
    std::size_t const own = links_.gpu_of(0);
    links_.use(own);
    auto const& home = (*gpu_set_)[own].home;
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) home.wait(links_.end_of(turn_, g));
    cuda::Place place = links_.place_of(0);
    place.stream = home.get();
    cuda::detail::AtPlace const here(place);
    machine_.join_outputs();
    home.record(links_.end_of(turn_, own));
  }

  void undo() {
    for (std::size_t r = 0; r < links_.ranks(); ++r) {
      if (!links_.own(r)) continue;
      links_.use(links_.gpu_of(r));
      cuda::detail::AtPlace const here(links_.place_of(r));
      links_.distributed_state().undo(r);
    }
    while (!links_.idle()) std::this_thread::yield();
  }

  stagger::detail::Machine& machine_;
  cuda::ParameterKernels const* kernels_;
  std::shared_ptr<GpuSet> gpu_set_;
  Links links_;
  GroupSums sums_;
  std::size_t turn_ = 0;  // of the step that is being enqueued, or was last
  bool timed_ = false;    // that step, by events
  bool decided_ = false;  // its updates are under way

 private:
  struct Updating {
    stagger::detail::RankState* rank;  // null: of another process
    std::size_t number;
    Instruction const* in;
  };
  std::vector<Updating> updates_;  // of this iteration, in the order of issue
};

}  // namespace stagger::nccl::detail
