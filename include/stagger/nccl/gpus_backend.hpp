// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: every rank a stream of one of several GPUs, every message between two of them
/// a send and a receive of NCCL.

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/caller.hpp>
#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/detail/require.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/engine/stall.hpp>
#include <stagger/nccl/detail/agree.hpp>
#include <stagger/nccl/detail/wiring.hpp>

namespace stagger::nccl {

/// Issues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event, allocates nothing and
/// synchronises with nothing but the end of the step.
class GpusBackend {
 public:
  static constexpr bool timed = false;
  static constexpr bool enqueues = true;  // also the update of an optimizer that says so

  /// Meets the other GPUs.
  /// @throws Error  for a GPU that is not there, or named twice; deadline for those that do not
  ///                come; mismatch for a process with another pipeline
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : machine_(machine),
        kernels_(device.kernels),
        fleet_(device.meet_others(places)),
        wiring_(machine, device.wires, fleet_) {
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      memories_->push_back(cuda::detail::parameter_memory((*fleet_)[g].device.index()));
    machine_.keep(memories_);
    if (!fleet_->alone()) detail::agree(*fleet_, detail::facts_of(machine_), device.meet_s);
    meet_s_ = device.meet_s;
  }
  GpusBackend(GpusBackend const&) = delete;
  GpusBackend& operator=(GpusBackend const&) = delete;
  ~GpusBackend() {
    if (!stuck_) return;
    // The devices may still come to what they were given: it stays, and their memory too.
    cuda::detail::leave_behind(wiring_.streams());
    cuda::detail::leave_behind(std::move(fleet_));
    machine_.abandon_parameters();
    for (auto& memory : *memories_)
      memory.release = [](stagger::detail::ParameterMemory const&, void*) noexcept {};
  }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  [[gnu::cold]] void load(std::vector<int> const& place) {
    auto const& program = machine_.program();
    cuda::detail::require_runnable(machine_, kernels_);
    if (lost_) refuse();
    if (!fleet_->alone()) detail::agree(*fleet_, detail::facts_of(program, place), meet_s_);
    place_ = place;
    wiring_.load(place);
    settle_parameters(program);
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      fleet_->select(g);
      auto& gpu = (*fleet_)[g];
      gpu.iteration.load(machine_, kernels_);
      gpu.sums.resize({std::max<std::size_t>(1, machine_.parameter_count())});
    }
  }

  /// Carries the step out that the machine has begun. Returns when every stream has, or when the
  /// devices did not move for the deadline.
  void drive() noexcept {
    decided_ = false;
    wiring_.begin_step();
    try {
      if (lost_) refuse();
      begin_iteration();
      issue();
      launch_updates();
      join();
    } catch (...) {
      if (decided_)
        lose(std::current_exception());
      else
        fail(std::current_exception());
    }
    // Others wait for messages that will not come.
    bool const cut = wiring_.broken() || (machine_.failed() && !fleet_->alone());
    if (cut) fleet_->abort("the step has failed");
    drain(cut);
    finish();
  }

  /// Runs the step on a thread of its own and then resumes `then` there.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, [this] { drive(); });
    return true;
  }

  /// Ends the step with an error; what has not been enqueued yet is not. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }

  /// Brings values and optimizer state of every layer from the process that updates it. All
  /// processes call it.
  [[gnu::cold]] void gather_parameters() {
    if (fleet_->alone() || place_.empty()) return;
    if (lost_) refuse();
    auto const& islands = wiring_.islands();
    auto& gpu = (*fleet_)[0];
    fleet_->select(0);
    cuda::Tensor<std::byte> passing;  // for what has no place on this GPU
    for (std::size_t c = 0; c < machine_.program().cells.size(); ++c) {
      if (islands.first_owner(c) != c) continue;
      int const root = place_[islands.rank_of(c)];
      islands.each_layer(c, [&](std::size_t l, auto const*) {
        auto const& parameters = islands.parameters(l);
        bool const here = parameters.memory() != machine_.memory_of_parameters();
        for (auto const block : parameters.blocks()) {
          if (block.empty()) continue;
          if (!here) passing.resize({block.size()});
          std::span const there = here ? block : std::span(passing.data(), block.size());
          gpu.world.broadcast(there, root).wait(machine_.options().deadline_s);
          if (!here)
            cuda::check(
                cudaMemcpy(block.data(), there.data(), block.size(), cudaMemcpyDeviceToHost),
                "fetch parameters");
        }
      });
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Updating {
    stagger::detail::RankState* rank;  // null: of another process
    std::size_t number;
    Instruction const* in;
  };

  [[noreturn]] [[gnu::cold]] static void refuse() {
    throw stagger::Error(Errc::device,
                         "the GPUs or their communicators were lost in an earlier step; make a new "
                         "pipeline");
  }

  /// Parameters go to the GPU of their first owner; where that is of another process, to one that
  /// uses them; else they stay.
  [[gnu::cold]] void settle_parameters(Program const& program) {
    auto const& islands = wiring_.islands();
    auto const memory_of = [&](std::size_t cell) {
      std::size_t const rank = islands.rank_of(cell);
      return wiring_.own(rank) ? &(*memories_)[wiring_.gpu_of(rank)]
                               : machine_.memory_of_parameters();
    };
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      std::size_t home = islands.first_owner(c);
      while (!wiring_.own(islands.rank_of(home)) && home + 1 < program.cells.size() &&
             program.cells[home + 1].stage == program.cells[c].stage)
        ++home;
      islands.settle(c, memory_of(c), memory_of(home));
    }
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
      gpu.iteration.send(machine_, gpu.home);
      cuda::check(
          cudaMemsetAsync(gpu.sums.data(), 0, gpu.sums.size() * sizeof(double), gpu.home.get()),
          "clear sums of squares");
      if (machine_.options().record) gpu.timeline.begin(gpu.home);
      wiring_.fork(g);
    }
  }

  void issue() {
    auto& ranks = machine_.ranks();
    for (auto const& turn : wiring_.routes().turns()) {
      if (machine_.failed()) return;
      Instruction const& in = ranks[turn.rank].begin[turn.index];
      if (wiring_.own(turn.rank))
        execute(ranks[turn.rank], in);
      else if (in.op == Op::update)
        updates_.push_back({nullptr, turn.rank, &in});
      wiring_.give(turn.rank, turn.index, in);
    }
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    auto const r = static_cast<std::size_t>(rank.number);
    wiring_.await(rank, in);
    if (in.op == Op::update) return updates_.push_back({&rank, r, &in});
    auto& gpu = (*fleet_)[wiring_.gpu_of(r)];
    cuda::detail::AtPlace const here(wiring_.place_of(r));
    if (in.op == Op::finish) {
      wiring_.await_gradients(r);
      return wiring_.islands().finish(r, clips() ? gpu.sums.data() : nullptr);
    }
    if (in.op > Op::recompute) return machine_.execute_end(rank, in);
    if (!rank.record) return stagger::detail::run_compute(rank, in);
    gpu.timeline.action(rank, in, wiring_.compute(r),
                        [&] { stagger::detail::run_compute(rank, in); });
  }

  /// Whatever CUDA and NCCL may refuse comes before the updates; and on the devices, so do all
  /// ranks of all processes.
  void launch_updates() {
    if (machine_.failed()) return;
    if (clips() || (commits() && !fleet_->alone())) {
      // Every sum is of one GPU and 0 on the others, so that their order does not matter.
      wiring_.sum_up([](detail::Gpu& gpu) { return std::span(gpu.sums.data(), gpu.sums.size()); });
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
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    if (!fleet_->alone() && losses() != nullptr)
      wiring_.sum_up(
          [&](detail::Gpu& gpu) { return std::span(gpu.iteration.place(0).losses, microbatches); });
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      wiring_.join(g);
      (*fleet_)[g].iteration.fetch((*fleet_)[g].home);
    }
  }

  /// Waits for the devices, looking at them, at NCCL and at the deadline.
  /// @param aborted  NCCL has been told to end what is under way
  void drain(bool aborted) noexcept {
    double const deadline_s = machine_.options().deadline_s;
    auto const start = Clock::now();
    auto moved = start;
    std::uint64_t before = 0;
    for (; !stuck_; std::this_thread::sleep_for(std::chrono::microseconds(50))) {
      try {
        if (wiring_.idle()) break;
        auto const now = Clock::now();
        while (now - start < std::chrono::microseconds(500) &&
               Clock::now() - now < std::chrono::microseconds(20))
          std::this_thread::yield();
        auto const since_s = std::chrono::duration<double>(now - moved).count();
        if (aborted) {
          stuck_ = since_s > grace_s;
          continue;
        }
        fleet_->look();
        if (auto const progress = wiring_.look(at_); progress != before) {
          before = progress;
          moved = now;
        } else if (since_s > deadline_s) {
          throw stagger::Error(Errc::deadline, stall_text());
        }
      } catch (...) {
        lose(std::current_exception());
        stuck_ = aborted;  // not even that helped
        aborted = true;
        moved = Clock::now();
        fleet_->abort("the step has failed");
      }
    }
    lost_ = lost_ || aborted;
  }

  [[nodiscard]] [[gnu::cold]] std::string stall_text() const {
    auto const& program = machine_.program();
    std::vector<std::uint32_t> given(program.signals.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < at_[r]; ++i)
        for (unsigned g = 0; g < program.ranks[r].code[i].gives; ++g)
          ++given[program.ranks[r].code[i].give[g]];
    return text("the GPUs did not move for ", machine_.options().deadline_s,
                " s: ", stagger::detail::describe_stall(program, at_, given),
                "; raise Options::deadline_s if an action may take that long");
  }

  /// Ends a step that may have been decided.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    machine_.lose(std::move(failure));
    lost_ = true;
  }

  /// Losses, and what became of the parameters.
  [[gnu::cold]] void finish() noexcept {
    if (stuck_) return;
    try {
      if (machine_.failed()) {
        if (!decided_) undo();
        return;
      }
      for (std::size_t g = 0; g < fleet_->size(); ++g)
        cuda::check((*fleet_)[g].iteration.refused(),
                    "change parameters of a step that was decided");
      take_results();
    } catch (...) {
      lose(std::current_exception());
    }
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

  void take_results() {
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    bool first = true;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      auto& gpu = (*fleet_)[g];
      fleet_->select(g);
      if (machine_.options().record) gpu.timeline.finish();
      if ((fleet_->alone() && !gpu.iteration.has_losses()) || losses() == nullptr) continue;
      double const* const here = gpu.iteration.losses();
      for (std::size_t m = 0; m < microbatches; ++m)
        losses()[m] = first ? here[m] : losses()[m] + here[m];
      first = false;
    }
    for (std::size_t r = 0; r < wiring_.ranks(); ++r)
      if (wiring_.own(r))
        machine_.gradient_norm((*fleet_)[wiring_.gpu_of(r)].iteration.gradient_norm(r));
  }

  static constexpr double grace_s = 0.5;  // for what is under way to end once it was aborted

  stagger::detail::Machine& machine_;
  cuda::ParameterKernels const* kernels_;
  std::shared_ptr<detail::Fleet> fleet_;
  detail::Wiring wiring_;
  std::shared_ptr<std::vector<stagger::detail::ParameterMemory>> memories_ =
      std::make_shared<std::vector<stagger::detail::ParameterMemory>>();  // [GPUs]
  double meet_s_ = 0;
  std::vector<int> place_;         // [ranks]
  std::vector<Updating> updates_;  // of this iteration, in the order of issue
  std::vector<std::size_t> at_;    // [ranks] instructions that are known to be done
  bool decided_ = false;           // updates are under way
  bool lost_ = false;              // no further step
  bool stuck_ = false;             // the devices may still be at it
  cuda::detail::Caller caller_;
};

}  // namespace stagger::nccl
