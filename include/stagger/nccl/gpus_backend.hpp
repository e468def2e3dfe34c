// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: every rank a stream of one of several GPUs, every message between two of them
/// a send and a receive of NCCL.

#include <algorithm>
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
#include <stagger/cuda/detail/carry_out.hpp>
#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/detail/require.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/nccl/detail/agree.hpp>
#include <stagger/nccl/detail/group_sums.hpp>
#include <stagger/nccl/detail/patience.hpp>
#include <stagger/nccl/detail/wiring.hpp>

namespace stagger::nccl {

/// Issues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event, allocates nothing and
/// synchronises with nothing but the end of the step.
class GpusBackend {
 public:
  static constexpr bool timed = false;
  static constexpr bool enqueues = true;  // also the update of an optimizer that says so
  static constexpr bool sums_while_running = true;
  static constexpr bool keeps_whole_states = true;

  /// Meets the other GPUs.
  /// @throws Error  for a GPU that is not there, or named twice; deadline for those that do not
  ///                come; mismatch for a process with another pipeline
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : machine_(machine),
        kernels_(device.kernels),
        fleet_(device.meet_others(places)),
        wiring_(machine, device.wires, fleet_),
        sums_(machine, *fleet_, wiring_),
        patience_(machine, *fleet_, wiring_) {
    if (device.ahead < 1)
      raise(Errc::bad_configuration, "the host cannot be ", device.ahead,
            " steps ahead of its GPUs; use at least 1");
    turns_.resize(static_cast<std::size_t>(device.ahead));
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      memories_->push_back(cuda::detail::parameter_memory((*fleet_)[g].device.index()));
    machine_.keep(memories_);
    meet_s_ = device.meet_s;
    if (fleet_->alone()) return;
    detail::agree(*fleet_, detail::facts_of(machine_), device.meet_s);
    auto const share = [](void* sums, double* backward_s, double* sum_s) {
      static_cast<detail::GroupSums*>(sums)->share(backward_s, sum_s);
    };
    machine_.set_grouping_peers({&sums_, share, nullptr});
  }
  GpusBackend(GpusBackend const&) = delete;
  GpusBackend& operator=(GpusBackend const&) = delete;
  ~GpusBackend() {
    for (std::size_t i = 1; i <= turns(); ++i) {  // no longer than the deadline
      std::size_t const turn = (turn_ + i) % turns();
      if (turns_[turn].flies) static_cast<void>(await(turn, 0));
    }
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
    sums_.load(place, meet_s_);
    wiring_.load(place, turns());
    settle_parameters(program);
    sums_.settle();
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      fleet_->select(g);
      auto& gpu = (*fleet_)[g];
      gpu.iteration.load(machine_, kernels_, turns());
      gpu.sums.resize({std::max<std::size_t>(1, machine_.parameter_count())});
    }
  }

  /// Carries the step out that the machine has begun. Returns when every stream has, or when the
  /// devices did not move for the deadline.
  void drive() noexcept {
    enqueue(0);
    if (machine_.failed() || await(0, 0)) return;
    try {
      for (std::size_t g = 0; g < fleet_->size() && timed_; ++g) {
        fleet_->select(g);
        (*fleet_)[g].timeline.finish(machine_);
      }
      machine_.gradient_norm(results(0, losses()));
    } catch (...) {
      lose(std::current_exception());
    }
  }

  // For hosts that run ahead.

  [[nodiscard]] bool runs_ahead() const noexcept {
    return !machine_.options().record && !machine_.measures();
  }
  [[nodiscard]] std::size_t turns() const noexcept { return turns_.size(); }

  /// Has the devices begin the step that the machine has begun. Nothing of it flies if the machine
  /// has failed: what was enqueued of it, and all before it, is done.
  void enqueue(std::size_t turn) noexcept {
    turn_ = turn;
    decided_ = false;
    turns_[turn] = {};
    try {
      if (lost_) refuse();
    } catch (...) {
      return fail(std::current_exception());
    }
    wiring_.begin_step(turn);
    sums_.begin_step();
    timed_ = machine_.options().record || machine_.measures();
    try {
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
    if (machine_.failed()) return call_off();
    turns_[turn].flies = true;
    turns_[turn].decided = decided_;
  }

  /// Whether the devices are done with a turn.
  [[nodiscard]] bool landed(std::size_t turn) noexcept {
    if (lost_ || turns_[turn].landed) return true;
    try {
      return has_landed(turn);
    } catch (...) {
      return true;  // `await` tells
    }
  }

  /// Waits until the devices are done with a turn. All before it must have been awaited.
  /// @param step  its number, for an error; 0: none is named
  /// @return  what it ended with; null: it went well
  [[nodiscard]] std::exception_ptr await(std::size_t turn, std::int64_t step) noexcept {
    return await(turn, step, 0);
  }

  /// What came back of a turn that went well.
  /// @param losses  [parts][microbatches] where losses go that the devices have; may be null
  /// @return the norm of the gradients
  double results(std::size_t turn, double* losses) const noexcept {
    bool first = true;
    for (std::size_t g = 0; g < fleet_->size() && losses != nullptr; ++g) {
      auto const& iteration = (*fleet_)[g].iteration;
      if (fleet_->alone() && !iteration.has_losses()) continue;
      double const* const here = iteration.losses(turn);
      for (std::size_t m = 0; m < iteration.loss_count(); ++m)
        losses[m] = first ? here[m] : losses[m] + here[m];
      first = false;
    }
    double norm = 0;
    for (std::size_t r = 0; r < wiring_.ranks(); ++r)
      if (wiring_.own(r)) norm = (*fleet_)[wiring_.gpu_of(r)].iteration.gradient_norm(r, turn);
    return norm;
  }

  /// @throws Error  device, if parameters were lost
  void require_present() const {
    if (spoilt_) refuse();
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
  struct Updating {
    stagger::detail::RankState* rank;  // null: of another process
    std::size_t number;
    Instruction const* in;
  };

  struct Turn {
    bool flies = false;    // was enqueued and not awaited
    bool decided = false;  // its updates were
    bool landed = false;   // before the devices were lost
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
      return cuda::detail::carry_out(machine_, rank, in);
    gpu.timeline.action(rank, in, stream, [&] { cuda::detail::carry_out(machine_, rank, in); });
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
      wiring_.sum_up([&](detail::Gpu& gpu) {
        return std::span(gpu.iteration.place(0).losses, gpu.iteration.loss_count());
      });
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      auto& gpu = (*fleet_)[g];
      wiring_.join(g);
      gpu.iteration.fetch(gpu.home, turn_);
      gpu.home.record(wiring_.end_of(turn_, g));
      cuda::check(gpu.iteration.refused(), "change parameters of a step that was decided");
    }
    if (machine_.arguments().outputs.first != nullptr && !machine_.options().replicas.empty())
      join_outputs();
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
  [[nodiscard]] bool has_landed(std::size_t turn) const {
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      if (!wiring_.end_of(turn, g).done()) return false;
    return true;
  }

  std::exception_ptr await(std::size_t turn, std::int64_t step, double grace_s) noexcept {
    turns_[turn].flies = false;
    if (turns_[turn].landed) return nullptr;
    if (!lost_)
      if (auto failure = patience_.wait(
              turn, false, [&] { return has_landed(turn); }, grace_s)) {
        reason_ = step == 0 ? failure : detail::of_step(failure, step);
        spoilt_ = spoilt_ || turns_[turn].decided;
        lose(reason_);
        abort();
      }
    return lost_ ? reason_ : nullptr;
  }

  /// Ends a step that could not be enqueued. Those before it stand, if the devices get there.
  [[gnu::cold]] void call_off() noexcept {
    if (wiring_.broken() || !fleet_->alone()) {  // others wait for messages that will not come
      for (std::size_t i = 1; i < turns() && !lost_; ++i) {
        std::size_t const turn = (turn_ + i) % turns();
        if (turns_[turn].flies)
          turns_[turn].landed = await(turn, 0, detail::Patience::grace_s) == nullptr;
      }
      abort();
    } else if (auto failure = patience_.wait(turn_, false, [&] { return wiring_.idle(); })) {
      for (Turn const& turn : turns_) spoilt_ = spoilt_ || (turn.flies && turn.decided);
      lose(std::move(failure));
      abort();
    }
    if (stuck_ || decided_ || spoilt_) return;
    try {
      undo();
    } catch (...) {
      lose(std::current_exception());
    }
  }

  /// Ends all communicators, and with them what waits for messages.
  [[gnu::cold]] void abort() noexcept {
    lost_ = true;
    fleet_->abort("the step has failed");
    stuck_ = stuck_ || !patience_.let_end();
  }

  /// Ends a step that may have been decided.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    if (!reason_) reason_ = failure;
    spoilt_ = spoilt_ || decided_;
    machine_.lose(std::move(failure));
    lost_ = true;
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
  std::shared_ptr<detail::Fleet> fleet_;
  detail::Wiring wiring_;
  detail::GroupSums sums_;
  std::shared_ptr<std::vector<stagger::detail::ParameterMemory>> memories_ =
      std::make_shared<std::vector<stagger::detail::ParameterMemory>>();  // [GPUs]
  double meet_s_ = 0;
  std::vector<int> place_;         // [ranks]
  std::vector<Updating> updates_;  // of this iteration, in the order of issue
  std::vector<Turn> turns_;
  std::size_t turn_ = 0;       // of the step that is being enqueued, or was last
  std::exception_ptr reason_;  // for which the devices were lost
  bool timed_ = false;         // the step under way, by events
  bool decided_ = false;       // updates are under way
  bool lost_ = false;          // no further step
  bool spoilt_ = false;        // nor parameters
  bool stuck_ = false;         // the devices may still be at it
  detail::Patience patience_;
  cuda::detail::Caller caller_;
};

}  // namespace stagger::nccl
