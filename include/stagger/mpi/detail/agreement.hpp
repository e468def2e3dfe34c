// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The agreements of all processes: the facts that must be equal in them, the comparisons
///         before messages are used, the common loading of a program, and the reports of failures.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/batch_parts.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/facts.hpp>

namespace stagger::mpi::detail {

using stagger::detail::Digest;

/// The facts of a pipeline: version, model, cuts, options.
[[nodiscard]] inline std::vector<collective::Fact> facts_of(HeldParameters const& held) {
  auto& machine = held.machine;
  auto& parameters = machine.parameters();
  Options const& options = machine.options();
  auto const& model = machine.model;
  auto const& grouping = machine.run.grouping;
  auto const yes = [](bool is) { return is ? "true" : "false"; };
  std::string cuts;
  for (std::size_t l = 1; l < parameters.size(); ++l)
    if (model.table_stage(held.stage_of(l)) != model.table_stage(held.stage_of(l - 1)))
      cuts += text(cuts.empty() ? "" : " ", model.number(l));
  std::string replicas;
  for (auto const& part : options.replicas.parts())
    replicas += text(part.position, ":", static_cast<std::int64_t>(part.own), "/",
                     static_cast<std::int64_t>(part.total), " ");
  std::vector<collective::Fact> facts{
      collective::library_fact(),
      {"the number of layers", std::to_string(model.model_layers())},
      {"partition::LayerSplit",
       model.grouped == nullptr ? "nothing is split" : model.grouped->description},
      {"the first layers of the stages", cuts},
      {"Options::replicas", replicas},
      {"Options::clip_norm", options.clip_norm ? text(*options.clip_norm) : "none"},
      {"Options::non_finite", name(options.non_finite)},
      {"AllReduce::shard_optimizer", yes(machine.shards())},
      {"AllReduce::by", grouping.by == collective::By::slices ? "slices" : "library"},
      {"AllReduce::measured_steps", std::to_string(grouping.measured_steps)},
      {"AllReduce::renew_every", std::to_string(grouping.renew_every)},
      {"the worker of the parameter server",
       machine.exchange() == nullptr ? "none" : text(machine.exchange()->worker())},
      {"Options::seed", std::to_string(options.seed)},
      {"Options::recompute", yes(options.recompute)},
      {"Options::check_recompute", yes(options.check_recompute)},
      {"Options::spare_slots",
       options.spare_slots ? std::to_string(*options.spare_slots) : "as laid out"}};
  for (std::size_t l = 0; l < parameters.size(); ++l) {
    auto const& layer = parameters[l];
    std::string shape;
    Digest values;
    for (std::size_t i = 0; i < layer.count(); ++i) {
      auto const& d = layer.declaration(i);
      shape +=
          text(shape.empty() ? "" : ", ", layer.number(), ".", d.name, ": ", layer.value_bytes(i),
               " bytes of ", d.type == stagger::ElementType::f32 ? "float" : "double",
               d.rows == 0 ? text("") : text(" in ", counted(d.rows, "row")),
               d.decays ? "" : ", without decay");
      auto const origin = layer.origin(i);
      values.add({reinterpret_cast<char const*>(origin.data()), origin.size()});
    }
    facts.push_back({text("the parameters of layer ", layer.number()), shape});
    facts.push_back({text("the values of layer ", layer.number(), "'s parameters"), values.hex()});
  }
  return facts;
}

/// @throws Error  mismatch for the first fact that is not equal in all processes
inline void agree(Exchange& world, std::vector<collective::Fact> const& facts, double seconds) {
  collective::agree(world.rank(), world.size(), facts, [&](std::span<std::byte> all) {
    world.all_gather(all, "compare what they run", seconds);
  });
}

/// The facts of a program that must be equal in all processes: what every rank does, and where it
/// runs.
/// @param prepares  whether the program is only prepared, and no step follows
[[nodiscard]] inline std::vector<collective::Fact> facts_of(Program const& program,
                                                            Placement const& placement,
                                                            bool prepares) {
  std::string places;
  for (int r = 0; r < placement.ranks(); ++r)
    places += text(places.empty() ? "" : " ", placement.process_of(r));
  std::vector<collective::Fact> facts{
      {"what the step does", program.training ? "training" : "forward only"},
      {"the number of microbatches", std::to_string(program.microbatches)},
      {"the number of ranks", std::to_string(program.ranks.size())},
      {"the processes of the ranks", places},
      {"the groups of gradients", stagger::detail::describe_groups(program)}};
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    facts.push_back(
        {text("the program of rank ", r), stagger::detail::digest_of(program.ranks[r]).hex()});
  facts.push_back({"what is asked for", prepares ? "Trainer::prepare" : "a step"});
  return facts;
}
/// A digest of these facts, for which nothing is allocated.
[[nodiscard]] inline std::uint64_t digest_of(Program const& program, Placement const& placement,
                                             bool prepares) noexcept {
  Digest all;
  all.numbers(program.training, program.microbatches, program.ranks.size(), prepares,
              program.groups.size());
  for (int r = 0; r < placement.ranks(); ++r) all.numbers(placement.process_of(r));
  for (GradientGroup const& group : program.groups)
    all.numbers(group.stage, group.lowest, group.highest);
  for (RankProgram const& rank : program.ranks)
    all.numbers(stagger::detail::digest_of(rank).value());
  return all.value();
}

/// @throws Error mismatch if another process takes another step than this one
inline void require_same_step(Envelope const& theirs, Stamp const& own, int peer, int here) {
  bool const differs = theirs.uses != 0 && own.uses != 0 && theirs.uses != own.uses;
  if (theirs.steps == own.steps && !differs) return;
  bool const lower = peer < here;
  int const first = lower ? peer : here;
  int const second = lower ? here : peer;
  if (theirs.steps != own.steps)
    raise(Errc::mismatch, "process ", first, " goes on from step ",
          lower ? theirs.steps : own.steps, ", process ", second, " from step ",
          lower ? own.steps : theirs.steps,
          "; resume all processes from the same checkpoint, and take the same steps in all");
  if (own.uses <= 2)
    raise(Errc::mismatch, "process ", own.uses == 1 ? here : peer, " is asked for a loss, process ",
          own.uses == 1 ? peer : here, " for outputs; ask for the same in all processes");
  raise(Errc::mismatch, "processes ", first, " and ", second, " take step ", own.steps + 1,
        " with different numbers in the optimizer, such as its learning rate; set them alike in "
        "all processes");
}

/// What a program does, for error messages.
[[nodiscard]] inline std::string asked(Program const& program) {
  return text(program.training ? "a training" : "a forward-only", " step of ",
              counted(program.microbatches, "microbatch"));
}

/// @throws Error mismatch if another process is given other inputs, or other targets, than this one,
///         or the same ones where it has rows of its own
inline void require_same_batch(Envelope const& theirs, Stamp const& own, BatchParts const& parts,
                               int peer, int here, Program const& program) {
  auto const differ = [](std::uint64_t a, std::uint64_t b) { return a != 0 && b != 0 && a != b; };
  bool const inputs = parts.same_inputs(peer) && differ(theirs.inputs, own.inputs);
  bool const targets = parts.same_targets(peer) && differ(theirs.targets, own.targets);
  if (theirs.inputs != 0 && theirs.inputs == own.inputs && parts.other_inputs(peer) &&
      !differ(theirs.targets, own.targets))
    raise(Errc::mismatch, "processes ", std::min(peer, here), " and ", std::max(peer, here),
          " are given the same inputs for ", asked(program),
          ", but mpi::Processes::own_rows means that each is given other rows; give each process "
          "only the rows of its own replicas (if these are really equal, "
          "mpi::Processes::check_batches = false turns this check off)");
  if (!inputs && !targets) return;
  raise(Errc::mismatch, "processes ", std::min(peer, here), " and ", std::max(peer, here),
        " are given different ",
        !targets ? "inputs"
        : inputs ? "inputs and targets"
                 : "targets",
        " for ", asked(program),
        "; give all processes the same batch, or each only what its own ranks "
        "read, as \"Coming from DDP\" in docs/scaling.md shows (mpi::Processes::check_batches "
        "turns this check off)");
}

/// @throws Error  mismatch if only one of this process and another is to load a program
[[noreturn]] inline void refuse_load(Envelope const& theirs, Stamp const& own, int peer, int here,
                                     Program const& program) {
  if (theirs.steps != own.steps) require_same_step(theirs, own, peer, here);
  raise(Errc::mismatch, "process ", here, " is asked for ", asked(program), ", process ", peer,
        " for something else; ask for the same in all processes");
}

/// The step, or the preparation of one, that all processes are taking together: its stamp for
/// messages, and whether the others know why this process has stopped.
class Round {
 public:
  Round(stagger::detail::Machine const& machine, Channels& channels, BatchParts& parts)
      : machine_(machine), channels_(channels), parts_(parts) {}

  /// @param number  of the round, counted by every process alike
  void open(std::uint32_t number) noexcept {
    stamp_.epoch = 2 * number;
    told_ = false;
    told_parts_.assign(static_cast<unsigned>(channels_.size()), false);
  }
  /// The step runs.
  void begin_step() noexcept {
    stamp(stamp_.epoch | 1U, machine_.arguments().outputs.first != nullptr ? 2 : 1);
    if (channels_.size() == 1) return;
    std::tie(stamp_.inputs, stamp_.targets) = parts_.digests();
  }
  /// @throws Error mismatch if another process takes another step than this one, or with another
  ///         batch
  void require_same(Envelope const& theirs, int peer) const {
    require_same_step(theirs, stamp_, peer, channels_.rank());
    require_same_batch(theirs, stamp_, parts_, peer, channels_.rank(), machine_.program());
  }
  [[nodiscard]] Stamp const& stamp() const noexcept { return stamp_; }

  [[nodiscard]] bool told() const noexcept { return told_; }
  /// Tells the others why this process stopped. They may be gone.
  void tell(std::exception_ptr const& failure) noexcept {
    told_ = true;
    peers_may_be_lost = true;
    FailureReport told = report_of(failure);
    try {
      if (alike_in_all(told.code) && in_a_layer(failure))
        told.message = text("process ", channels_.rank(), " ended the step: ", told.message);
      auto message = channels_.blank();
      message->payload.add(static_cast<std::uint32_t>(told.code));
      message->payload.add(told.message.data(), told.message.size());
      channels_.post_to_all(std::move(message), stamp_, notice_of_failure);
      channels_.flush(0.2);
    } catch (...) {  // the others will reach their deadline
    }
  }
  /// Receives the reason why another process stopped, which it has sent to all processes.
  [[nodiscard]] std::exception_ptr take_failure(int peer, Envelope const& envelope,
                                                ByteReader& in) {
    told_ = true;
    peers_may_be_lost = true;
    auto const code = static_cast<Errc>(in.take<std::uint32_t>());
    std::string message(in.left(), ' ');
    in.take(message.data(), message.size());
    if (alike_in_all(code)) return raised(code, message);
    bool const began = (envelope.epoch & 1U) != 0;
    return raised(Errc::peer_failed, "process ", peer,
                  began ? " ended the step: " : " could not begin the step: ", message);
  }

  /// Agrees with all processes, before they load the program of the machine.
  /// @param prepares  as in facts_of
  /// @throws Error  the reason why a process could not begin the round; mismatch with a process
  /// that loads another program or none; deadline for one that does not arrive
  void agree_on_load(Exchange& world, Placement const& placement, bool prepares, double seconds) {
    if (channels_.size() == 1) return;
    stamp(stamp_.epoch, 0);
    Program const& program = machine_.program();
    std::uint64_t const digest = digest_of(program, placement, prepares);
    auto message = channels_.blank();
    message->payload.add(digest);
    channels_.post_to_all(std::move(message), stamp_, notice_of_load);
    came_.assign(static_cast<unsigned>(channels_.size()), false);
    bool same = true;
    await_all(came_, seconds, [&](int peer, Envelope const& envelope, ByteReader& in) {
      if (envelope.what != notice_of_load) return take_parts(peer, envelope, in);
      require_same_step(envelope, stamp_, peer, channels_.rank());
      same = same && in.take<std::uint64_t>() == digest;
      came_[peer] = true;
    });
    if (!same)  // throws an error that names the difference
      agree(world, facts_of(program, placement, prepares), seconds);
  }

  /// Tells all processes which rows of the batch and how many terms this one is given, and
  /// completes the step by what they tell.
  void exchange_parts(stagger::detail::StepArguments& step, double* terms) {
    stamp(stamp_.epoch, 0);
    auto message = channels_.blank();
    parts_.tell(message->payload, step, terms);
    channels_.post_to_all(std::move(message), stamp_, notice_of_parts);
    await_all(told_parts_, machine_.options().deadline_s,
              [&](int peer, Envelope const& envelope, ByteReader& in) {
                require_same_step(envelope, stamp_, peer, channels_.rank());
                if (envelope.what == notice_of_parts) return take_parts(peer, envelope, in);
                refuse_load(envelope, stamp_, peer, channels_.rank(), machine_.program());
              });
    parts_.complete(step, terms);
  }

 private:
  /// Whether such an error is the same in all processes. Of gradients that are not finite, all that
  /// update together have the same words.
  [[nodiscard]] static bool alike_in_all(Errc code) noexcept {
    return code == Errc::deadline || code == Errc::mismatch || code == Errc::not_finite;
  }
  /// Whether a layer or the loss of this process threw it, whose words name no process.
  [[nodiscard]] bool in_a_layer(std::exception_ptr const& failure) const noexcept {
    bool any = false;
    for (auto const& rank : machine_.ranks()) any = any || rank.thrown == failure;
    return any;
  }
  /// Waits until all processes have sent what this round needs before its step runs.
  /// @param came     [processes] who has
  /// @param deliver  (peer, envelope, ByteReader&)
  template <class Deliver> void await_all(List<bool>& came, double seconds, Deliver deliver) {
    int const here = channels_.rank();
    came[here] = true;
    Program const& program = machine_.program();
    auto const take = [&](int peer, Envelope const& envelope, ByteReader& in) {
      if (envelope.what == notice_of_failure)
        std::rethrow_exception(take_failure(peer, envelope, in));
      deliver(peer, envelope, in);
    };
    Backoff waiting(std::chrono::microseconds(100), std::chrono::milliseconds(20));
    for (bool moved = true;; moved = channels_.poll(stamp_.epoch, take)) {
      auto const missing = std::find(came.begin(), came.end(), false);
      if (missing == came.end()) break;
      for (int p = 0; p < channels_.size(); ++p) {
        Envelope const* const next = came[p] ? nullptr : channels_.ahead(p, stamp_.epoch);
        if (next != nullptr) refuse_load(*next, stamp_, p, here, program);
      }
      if (waiting.waited_s() >= seconds)
        raise(Errc::deadline, "process ", missing - came.begin(), " has not asked for ",
              asked(program), " within ", seconds,
              " s; check that it is still running, and ask for the same in all processes");
      if (!moved) waiting.pause();
    }
  }
  /// A process that has loaded the program may tell its part before others have loaded it.
  void take_parts(int peer, Envelope const& envelope, ByteReader& in) {
    if (envelope.what != notice_of_parts) return;
    if (!came_[peer]) refuse_load(envelope, stamp_, peer, channels_.rank(), machine_.program());
    parts_.take(in, peer);
    told_parts_[peer] = true;
  }

  /// @param wants  of a step without an update: see Stamp::uses
  void stamp(std::uint32_t epoch, std::uint64_t wants) noexcept {
    bool const training = machine_.program().training;
    stamp_ = {epoch, machine_.steps(), training ? machine_.optimizer_digest() : wants, 0, 0};
  }

  stagger::detail::Machine const& machine_;
  Channels& channels_;
  BatchParts& parts_;
  Stamp stamp_{};
  bool told_ = false;
  List<bool> came_{};        // [processes] to the agreement on a program
  List<bool> told_parts_{};  // [processes] which part of the batch they are given
};

}  // namespace stagger::mpi::detail
