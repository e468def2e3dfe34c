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
#include <stagger/nccl/detail/wiring.hpp>

namespace stagger::nccl::detail {

/// What a back end over GPUs does in a step, whether devices carry it out or a graph records it.
class Issuing {
 protected:
  Issuing(stagger::detail::Machine& machine, cuda::ParameterKernels const* kernels,
          std::shared_ptr<Fleet> fleet, Wires const& wires)
      : machine_(machine),
        kernels_(kernels),
        fleet_(std::move(fleet)),
        wiring_(machine, wires, fleet_),
        sums_(machine, kernels, *fleet_, wiring_) {}
  Issuing(Issuing const&) = delete;
  Issuing& operator=(Issuing const&) = delete;
  ~Issuing() = default;

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
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      wiring_.use(g);
      auto& gpu = (*fleet_)[g];
      gpu.iteration.send(machine_, gpu.home, turn_);
      cuda::check(
          cudaMemsetAsync(gpu.sums.data(), 0, gpu.sums.size() * sizeof(double), gpu.home.get()),
          "clear sums of squares");
      if (timed_) gpu.timeline.begin(gpu.home);
      wiring_.fork(g);
    }
  }

  void issue() {
    auto& ranks = machine_.ranks();
    for (auto const& turn : wiring_.routes().turns()) {
      if (machine_.failed()) return;
      Instruction const& in = ranks[turn.rank].begin[turn.index];
      if (in.op == Op::reduce && sums_.apart(in.cell)) add_up(ranks[turn.rank], in);
      if (wiring_.own(turn.rank))
        execute(ranks[turn.rank], in);
      else if (in.op == Op::update)
        updates_.push_back({nullptr, turn.rank, &in});
      wiring_.give(turn.rank, turn.index, in);
    }
  }

  void add_up(stagger::detail::RankState& rank, Instruction const& in) {
    sums_.add_up(in, [&](std::size_t g, cuda::Stream const& stream, auto enqueue) {
      if (!timed_ || !sums_.measures(in)) return enqueue();
      wiring_.use(g);
      (*fleet_)[g].timeline.action(rank, in, stream, [&] {
        enqueue();
        wiring_.use(g);
      });
    });
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    auto const r = static_cast<std::size_t>(rank.number);
    wiring_.await(rank, in);
    if (in.op == Op::update) return updates_.push_back({&rank, r, &in});
    auto& gpu = (*fleet_)[wiring_.gpu_of(r)];
    if (in.op == Op::reduce && sums_.apart(in.cell)) return sums_.await(r, in);
    cuda::detail::AtPlace const here(wiring_.place_of(r));
    if (in.op == Op::finish) {
      wiring_.await_gradients(r);
      return wiring_.islands().finish(r, clips() ? gpu.sums.data() : nullptr);
    }
    auto const& stream = wiring_.compute(r);
    if (!timed_ || !cuda::detail::Timeline::shows(in))
      return stagger::detail::carry_out(machine_, rank, in);
    gpu.timeline.action(rank, in, stream, [&] { stagger::detail::carry_out(machine_, rank, in); });
  }

  /// Whatever CUDA and NCCL may refuse comes before the updates; and on the devices, so do all
  /// ranks of all processes.
  void launch_updates() {
    if (machine_.failed()) return;
    if (clips() || (commits() && !fleet_->alone())) {
      // Every sum is of one GPU and 0 on the others, so that their order does not matter.
      wiring_.sum_up([](Gpu& gpu) { return std::span(gpu.sums.data(), gpu.sums.size()); });
      if (clips()) scale_gradients();
    }
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      cuda::check((*fleet_)[g].iteration.refused(), "change parameters");  // without a flush
    if (updates_.empty() || !machine_.commit()) return;
    decided_ = true;
    for (auto const& [rank, r, in] : updates_) {
      if (rank != nullptr) {
        wiring_.use(wiring_.gpu_of(r));
        wiring_.await_handing_in(r);  // they become zero
        cuda::detail::AtPlace const here(wiring_.place_of(r));
        machine_.execute_end(*rank, *in);
        sums_.update(r);
      }
      wiring_.send_values(r);
    }
  }

  void scale_gradients() {
    for (std::size_t r = 0; r < wiring_.ranks(); ++r) {
      if (!wiring_.own(r)) continue;
      wiring_.use(wiring_.gpu_of(r));
      auto& gpu = (*fleet_)[wiring_.gpu_of(r)];
      cuda::check(kernels_->scale(gpu.sums.data(), machine_.parameter_count(),
                                  *machine_.options().clip_norm, gpu.iteration.place(r).scale,
                                  wiring_.compute(r).get()),
                  "find the scale of the gradients");
    }
  }

  void join() {
    if (machine_.failed()) return;
    if (!fleet_->alone() && losses() != nullptr)
      wiring_.sum_up([&](Gpu& gpu) {
        return std::span(gpu.iteration.place(0).losses, gpu.iteration.loss_count());
      });
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      auto& gpu = (*fleet_)[g];
      wiring_.join(g);
      gpu.iteration.fetch(gpu.home, turn_);
      cuda::check(gpu.iteration.refused(), "change parameters of a step that was decided");
    }
  }
  /// On the GPU of the first rank, behind all others.
  void join_outputs() {
    if (!fleet_->alone())
      raise(Errc::bad_configuration,
            "the rows that replicas predict in several processes are not brought together; predict "
            "in a pipeline of one process, or without Options::replicas");
    std::size_t const own = wiring_.gpu_of(0);
    wiring_.use(own);
    auto const& home = (*fleet_)[own].home;
    for (std::size_t g = 0; g < fleet_->size(); ++g) home.wait(wiring_.end_of(turn_, g));
    cuda::Place place = wiring_.place_of(0);
    place.stream = home.get();
    cuda::detail::AtPlace const here(place);
    machine_.join_outputs();
    home.record(wiring_.end_of(turn_, own));
  }

  void undo() {
    for (std::size_t r = 0; r < wiring_.ranks(); ++r) {
      if (!wiring_.own(r)) continue;
      wiring_.use(wiring_.gpu_of(r));
      cuda::detail::AtPlace const here(wiring_.place_of(r));
      wiring_.islands().undo(r);
    }
    while (!wiring_.idle()) std::this_thread::yield();
  }

  stagger::detail::Machine& machine_;
  cuda::ParameterKernels const* kernels_;
  std::shared_ptr<Fleet> fleet_;
  Wiring wiring_;
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
